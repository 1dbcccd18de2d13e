// SPDX-License-Identifier: Apache-2.0
// The case that is being read: its image, its frames with their label maps, and what the model said about them.
import { getFile, getLabel, getStudy, sendForm } from "./api.js";
import { LabelMap } from "./labelmap.js";

export class Reading {
  constructor(viewer, changed) {
    this.viewer = viewer;
    this.changed = changed; // called whenever there is something else to show
    this.turn = 0; // of answers that come late, those to an earlier case are dropped
    this.reset(null);
  }

  reset(study) {
    this.turn += 1;
    // saved: the label in the store; replaced: frames for which there is something newer
    Object.assign(this, { study, frame: 0, maps: new Map(), saved: null, replaced: new Set(), kernel: null, busy: "" });
  }

  get map() {
    return this.maps.get(this.frame) ?? null;
  }

  get result() {
    return this.map?.result ?? null;
  }

  get dirty() {
    return [...this.maps.values()].some((map) => map.dirty);
  }

  // study: { id, name, query, labeled, file }; id is null for a file that was opened from this computer.
  async open(study) {
    this.reset(null);
    this.viewer.clear();
    await this.work("Loading…", async (current) => {
      const [image, label] = await Promise.all([
        study.file ?? getStudy(study.id), study.labeled ? getLabel(study.id).then(LabelMap.load) : null,
      ]);
      const query = study.file ? `session_id=${(await sendForm("PUT", "/session/", { files: study.file })).session_id}` : study.query;
      if (!current()) return;
      await this.viewer.show(image, current);
      if (!current()) return;
      this.study = { ...study, query };
      this.saved = label;
      this.showFrame(0);
    });
  }

  showFrame(number) {
    this.frame = Math.min(Math.max(number, 0), this.viewer.frames - 1);
    this.kernel = null;
    this.viewer.dropHeat();
    this.viewer.frame = this.frame;
    if (this.saved && !this.map && !this.replaced.has(this.frame)) {
      const map = LabelMap.of(this.saved, this.frame);
      if (this.viewer.frames === 1 || map.values.some(Boolean)) this.maps.set(this.frame, map);
    }
    this.changed();
  }

  // Segment the frame that is shown. What stood there before is taken away first.
  async run(model) {
    const { frame } = this;
    this.maps.delete(frame);
    this.replaced.add(frame);
    this.kernel = null;
    this.viewer.dropHeat();
    await this.work("Running…", async (current) => {
      const path = `/vmfseg/segment/${encodeURIComponent(model)}?${this.study.query}&frame=${frame}`;
      const result = await sendForm("POST", path, { params: "{}" });
      const mask = await getFile(`/vmfseg/result/${result.id}/mask.nii.gz`, "mask.nii.gz");
      const map = LabelMap.of(await LabelMap.load(mask), 0, result);
      if (current()) this.maps.set(frame, map);
    });
  }

  startEmpty() {
    this.maps.set(this.frame, LabelMap.empty(this.viewer.image));
    this.changed();
  }

  // Forget what a model said, but not what was drawn.
  forget() {
    for (const [frame, map] of this.maps) if (map.result && !map.strokes.length) this.maps.delete(frame);
    this.kernel = null;
    this.viewer.dropHeat();
    this.changed();
  }

  async toggleKernel(number) {
    const { turn, frame, result } = this;
    const isWanted = () => turn === this.turn && frame === this.frame && result === this.result;
    if (this.kernel === number) {
      this.viewer.dropHeat();
      this.kernel = null;
    } else {
      const file = await getFile(`/vmfseg/result/${result.id}/kernel-${number}.nii.gz`, "kernel.nii.gz");
      await this.viewer.showHeat(file, isWanted);
      if (isWanted()) this.kernel = number;
    }
    this.changed();
  }

  // Send the label of this frame, and of others that were changed, as finished labels; return how many.
  async submit(model) {
    const chosen = [...this.maps].filter(([frame, map]) => map.dirty || frame === this.frame);
    await this.work("Submitting…", async () => {
      for (const [frame, map] of chosen) {
        const params = JSON.stringify({ frame, model: map.result?.model ?? model, client_id: "vmfseg-viewer" });
        const label = await map.file("label.nii.gz");
        await sendForm("PUT", `/datastore/label?image=${encodeURIComponent(this.study.id)}&tag=final`, { label, params });
        Object.assign(map, { dirty: false, origin: "saved" });
        this.replaced.add(frame);
      }
      this.study.labeled = true;
    });
    return chosen.length;
  }

  async download() {
    const stem = this.study.name.split("/").pop().replace(/\.(nii(\.gz)?|nrrd|mha)$/i, "");
    const frame = this.viewer.frames > 1 ? `_frame${String(this.frame).padStart(2, "0")}` : "";
    const file = await this.map.file(`${stem}${frame}_label.nii.gz`);
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: file.name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  async work(what, job) {
    const { turn } = this;
    this.busy = what;
    this.changed();
    try {
      await job(() => turn === this.turn);
    } catch (error) {
      if (turn === this.turn) throw error; // of another case, nobody wants to know any more
    } finally {
      if (turn === this.turn) this.busy = "";
      this.changed();
    }
  }
}
