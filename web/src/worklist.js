// SPDX-License-Identifier: Apache-2.0
// The cases of the store, those to look at first on top; the order stays while one works through it.
import { getJson, request } from "./api.js";
import { byId, element } from "./dom.js";

const FLAGS = {
  unreadable: "cannot be read", red: "red flag", amber: "amber flag", green: "green flag", unknown: "not calibrated",
};

export class WorkList {
  constructor(open) {
    this.open = open;
    this.rows = [];
    this.current = null;
    this.scoring = false;
    byId("previous").addEventListener("click", () => this.step(-1));
    byId("next").addEventListener("click", () => this.step(1));
  }

  async load(model, keepOrder = false) {
    this.take(await getJson(`/vmfseg/worklist/${encodeURIComponent(model)}`), keepOrder);
  }

  // Have the server score one case after the other until all are, or until the button is pressed again.
  async toggleScoring(model) {
    this.scoring = !this.scoring;
    this.show();
    if (!this.scoring) return;
    try {
      for (;;) {
        const answer = await (await request(`/vmfseg/worklist/${encodeURIComponent(model)}`, { method: "POST" })).json();
        this.take(answer.cases);
        if (!answer.scored || !this.scoring) return;
      }
    } finally {
      this.scoring = false;
      this.show();
    }
  }

  take(rows, keepOrder = false) {
    const place = new Map(this.rows.map((row, index) => [row.image, index]));
    const order = (row) => place.get(row.image) ?? place.size;
    this.rows = keepOrder ? rows.toSorted((a, b) => order(a) - order(b)) : rows;
    this.show();
  }

  select(image) {
    this.current = image;
    this.show();
    byId("cases-list").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }

  get index() {
    return this.rows.findIndex((row) => row.image === this.current);
  }

  step(by) {
    const row = this.rows[this.index < 0 ? (by > 0 ? 0 : -1) : this.index + by];
    if (row) this.open(row);
  }

  show() {
    const { rows, index } = this;
    const labeled = rows.filter((row) => row.labeled).length, scored = rows.filter((row) => row.flag).length;
    byId("cases-count").textContent = rows.length ? `${labeled} of ${rows.length} labelled, ${scored} scored` : "No images here.";
    byId("score").disabled = scored === rows.length && !this.scoring;
    byId("score").textContent = this.scoring ? "Stop" : "Score all";
    byId("previous").disabled = index <= 0;
    byId("next").disabled = !rows.length || index === rows.length - 1;
    byId("case-place").textContent = index < 0 ? `${rows.length} cases` : `${index + 1} of ${rows.length}`;
    byId("cases-list").replaceChildren(...rows.map((row) => this.item(row)));
  }

  item(row) {
    const button = element("button", "case");
    const light = element("span", `light ${row.flag ?? "none"}`);
    const told = row.flag ? FLAGS[row.flag] : "not scored";
    const figure = row.predicted_dice === null ? "" : row.predicted_dice.toFixed(2);
    light.title = told;
    button.append(light, element("span", "name", row.image), element("span", "tick", row.labeled ? "✓" : ""), element("span", "number", figure));
    button.setAttribute("aria-label", `${row.image}, ${told}${figure && `, predicted Dice ${figure}`}${row.labeled ? ", labelled" : ""}`);
    button.title = row.image;
    if (row.image === this.current) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => this.open(row));
    const item = element("li");
    item.append(button);
    return item;
  }
}
