// SPDX-License-Identifier: Apache-2.0
// Fine-tune the model on the submitted labels, and watch it.
import { getJson, postJson, request } from "./api.js";
import { byId } from "./dom.js";

const POLL = 1500; // milliseconds
const WORDS = {
  RUNNING: "Training…", STOPPING: "Stopping…", STOPPED: "Stopped.", ERROR: "The training failed.", DONE: "Done. Run the model again: it has the new weights.",
};

export class Training {
  constructor(done) {
    this.done = done;
    this.running = false;
  }

  // How many labels there are to learn from.
  show(labels) {
    byId("train").textContent = this.running ? "Stop" : `Fine-tune on ${labels} ${labels === 1 ? "label" : "labels"}`;
    byId("train").disabled = !labels && !this.running;
    byId("steps").disabled = this.running;
    this.labels = labels;
  }

  async toggle(model) {
    if (this.running) {
      await request("/train/", { method: "DELETE" });
      return;
    }
    try {
      this.tell(await postJson(`/train/${encodeURIComponent(model)}`, { max_iterations: Number(byId("steps").value) }));
    } catch (error) {
      if (!/VMF541/.test(error.message)) throw error; // one that another page began is watched
    }
    do {
      await new Promise((resolve) => { setTimeout(resolve, POLL); });
      this.tell(await getJson("/train/"));
    } while (this.running);
    await this.done();
  }

  tell(task) {
    this.running = ["RUNNING", "STOPPING"].includes(task.status);
    byId("train-state").textContent = WORDS[task.status] ?? task.status;
    byId("train-log").textContent = task.details.at(-1) ?? "";
    this.show(this.labels);
  }
}
