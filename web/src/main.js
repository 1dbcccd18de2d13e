// SPDX-License-Identifier: Apache-2.0
// Wire the page: work list, case, image, label tools, panels.
import { getJson } from "./api.js";
import { Brush } from "./brush.js";
import { Cine } from "./cine.js";
import { Contrast } from "./contrast.js";
import { ask, byId, chip, element, press, say } from "./dom.js";
import { bindKeys } from "./keys.js";
import { showBox, showKernels, showQuality, showVolumes, showVoxel } from "./panels.js";
import { Reading } from "./reading.js";
import { Training } from "./training.js";
import { Viewer } from "./viewer.js";
import { WorkList } from "./worklist.js";

const canvas = byId("canvas");
const viewer = new Viewer(canvas, showSlice);
const reading = new Reading(viewer, show);
const brush = new Brush(byId("stage"), viewer, byId("ring"), () => (reading.busy ? null : reading.map), show);
const cine = new Cine((frame) => attempt(() => reading.showFrame(frame)));
const contrast = new Contrast(viewer, canvas);
const worklist = new WorkList(openRow);
const training = new Training(() => worklist.load(model(), true));
const LABELS = { predicted: "Prediction", saved: "Saved label", empty: "Empty label" };
let models = {};
let style = "outline";
let before = "outline"; // the style in which a hidden label comes back
let shown = null; // the label map whose voxel was asked about

attempt(start);
window.vmfseg = { viewer, reading, brush, worklist, cine }; // for tests, and for the curious

async function start() {
  models = await getJson("/vmfseg/models");
  byId("model").replaceChildren(...Object.keys(models).map((name) => new Option(name)));
  const on = (id, kind, act) => byId(id).addEventListener(kind, (event) => attempt(() => act(event)));
  on("model", "change", () => { reading.forget(); return worklist.load(model()); });
  on("file", "change", ({ target }) => target.files[0] && openFile(target.files[0]));
  on("run", "click", async () => { if (await settle(reading.map?.dirty)) await run(); });
  on("score", "click", () => worklist.toggleScoring(model()));
  on("slice", "input", ({ target }) => { viewer.slice = Number(target.value); });
  on("views", "click", ({ target }) => target.dataset.view && chooseView(target.dataset.view));
  on("styles", "click", ({ target }) => target.dataset.style && chooseStyle(target.dataset.style));
  on("opacity", "input", showStyle);
  on("zoom", "input", ({ target }) => zoom(Number(target.value)));
  on("contrast-reset", "click", () => zoom(1));
  on("crosshair", "change", ({ target }) => { viewer.crosshair = target.checked; });
  on("tools", "click", ({ target }) => target.dataset.tool && chooseTool(target.dataset.tool));
  on("size", "input", ({ target }) => { brush.size = Number(target.value); byId("size-text").textContent = target.value; });
  on("undo", "click", undo);
  on("empty", "click", () => reading.startEmpty());
  on("download", "click", () => reading.download());
  on("submit", "click", submit);
  on("train", "click", () => training.toggle(model()));
  canvas.addEventListener("pointerup", (event) => !event.button && !event.shiftKey && setTimeout(() => attempt(askVoxel), 0));
  addEventListener("beforeunload", (event) => reading.dirty && event.preventDefault());
  bindKeys(canvas, {
    ArrowUp: () => { viewer.slice += 1; }, ArrowDown: () => { viewer.slice -= 1; },
    ArrowLeft: () => cine.step(-1), ArrowRight: () => cine.step(1), " ": () => cine.toggle(),
    "[": () => worklist.step(-1), "]": () => worklist.step(1), "Ctrl+z": () => attempt(undo),
    l: () => chooseTool("look"), b: () => chooseTool("brush"), e: () => chooseTool("eraser"),
    "+": () => zoom(viewer.zoom * 1.25), "-": () => zoom(viewer.zoom / 1.25),
    o: () => chooseStyle(style === "none" ? before : "none"),
  });
  byId("cases-box").open = innerWidth > 860;
  await worklist.load(model());
  show();
  document.body.dataset.ready = "1";
}

const model = () => byId("model").value;
const classes = () => reading.result?.classes ?? models[model()]?.classes ?? [];

async function openRow(row) {
  await attempt(async () => {
    const query = `image=${encodeURIComponent(row.image)}`;
    if (await settle()) await open({ id: row.image, name: row.image, query, labeled: row.labeled });
  });
}

async function openFile(file) {
  byId("file").value = "";
  if (await settle()) await open({ id: null, name: file.name, file });
}

async function open(study) {
  say("");
  cine.stop();
  worklist.select(study.id);
  byId("case-name").textContent = study.name;
  document.title = `${study.name} – vmfseg`;
  await reading.open(study);
  if (reading.study?.name !== study.name) return;
  byId("views").replaceChildren(...viewer.views.map(([name, text]) => {
    const button = element("button", "", text);
    button.dataset.view = name;
    return button;
  }));
  chooseView(viewer.view);
  contrast.begin();
  zoom(1);
}

async function run() {
  say("");
  cine.stop();
  await reading.run(model());
  if (reading.result?.quality.warnings.length) say(reading.result.quality.warnings.join("\n"));
  if (reading.study?.id) await worklist.load(model(), true);
}

async function submit() {
  say("");
  const count = await reading.submit(model());
  await worklist.load(model(), true);
  show(); // there is one label more to learn from
  say(`Submitted${count > 1 ? ` ${count} frames` : ""}. The label is in the data store and will be learnt from.`);
}

function undo() {
  reading.map?.undo();
  viewer.refreshLabel();
  show();
}

// Before something replaces what was drawn: submit it, throw it away, or stay. Tells whether to go on.
async function settle(isDirty = reading.dirty) {
  if (!isDirty) return true;
  byId("unsaved").querySelector("[value=submit]").hidden = !reading.study.id;
  const answer = await ask(byId("unsaved"));
  if (answer === "submit") await submit();
  return answer !== "";
}

async function askVoxel() {
  const { result, map } = reading;
  if (brush.tool !== "look" || !result || !viewer.place || reading.busy) return;
  const [x, y, z] = viewer.place.mm;
  const voxel = await getJson(`/vmfseg/result/${result.id}/voxel?x=${x}&y=${y}&z=${z}`);
  if (map !== reading.map) return;
  shown = map;
  showVoxel(result, voxel);
}

function chooseTool(name) {
  brush.tool = name;
  press(byId("tools"), "tool", name);
  byId("pen").hidden = name === "look";
  byId("classes").hidden = name !== "brush";
  byId("stage").dataset.tool = name;
  byId("ring").hidden = true;
}

function chooseView(name) {
  press(byId("views"), "view", name);
  viewer.setView(name);
}

function zoom(value) {
  if (!viewer.image) return;
  viewer.zoom = Math.min(Math.max(value, 1), Number(byId("zoom").max));
  byId("zoom").value = viewer.zoom;
}

function showSlice() {
  const slider = byId("slice");
  slider.max = Math.max(0, viewer.slices - 1);
  slider.value = viewer.slice;
  byId("slice-text").textContent = viewer.slices ? `${viewer.slice + 1} of ${viewer.slices}` : "–";
}

function chooseStyle(name) {
  if (style !== "none") before = style;
  style = name;
  showStyle();
}

// With a kernel on top, the label steps back so that both can be seen.
function showStyle() {
  press(byId("styles"), "style", style);
  byId("opacity-field").hidden = style !== "fill";
  const opacity = Number(byId("opacity").value) / 100;
  viewer.setLabelStyle(style, reading.kernel === null ? opacity : opacity / 2);
}

function show() {
  const { study, map, result, busy } = reading;
  byId("hint").textContent = busy || (reading.turn > 1 ? "" : "Choose a case from the work list.");
  byId("run").disabled = !study || Boolean(busy);
  byId("run").textContent = busy || "Run model";
  byId("run").classList.toggle("main", !map);
  byId("controls").inert = !study;
  byId("start").hidden = Boolean(study);
  showLabelTools(study, map, busy);
  viewer.image && viewer.showLabel(map, classes());
  if (study) cine.show(reading.frame, viewer.frames);
  showStyle();
  showQuality(result);
  showVolumes(map, classes(), voxelMl());
  showBox(result);
  showKernels(result, reading.kernel, (number) => attempt(() => reading.toggleKernel(number)));
  if (map !== shown) showVoxel(null, null);
  training.show(worklist.rows.filter((row) => row.labeled).length);
}

function showLabelTools(study, map, busy) {
  byId("label").hidden = !study;
  byId("label").inert = Boolean(busy);
  byId("edit").hidden = !map;
  byId("empty").hidden = Boolean(map);
  byId("undo").disabled = !map?.strokes.length;
  byId("submit").disabled = !study?.id;
  byId("submit").title = study?.id ? "Keep this as the finished label of the case" : "Only cases of the work list can be submitted";
  const frame = viewer.frames > 1 ? ` of frame ${reading.frame + 1}` : "";
  byId("label-state").textContent = !map
    ? `No label${frame} yet. Run the model, or draw.`
    : map.dirty ? `Changes${frame} are not submitted.` : `${LABELS[map.origin]}${frame}.`;
  const structures = classes().filter((entry) => entry.value);
  if (!structures.some((entry) => entry.value === brush.value)) brush.value = structures[0]?.value ?? 1;
  const chips = structures.map((entry) => {
    const button = element("button", "structure", entry.name);
    button.dataset.value = entry.value;
    button.prepend(chip(entry.color));
    button.addEventListener("click", () => { brush.value = entry.value; press(byId("classes"), "value", entry.value); });
    return button;
  });
  byId("classes").replaceChildren(...chips);
  press(byId("classes"), "value", brush.value);
}

function voxelMl() {
  const [, x, y, z] = viewer.image?.pixDimsRAS ?? [0, 0, 0, 0];
  return (x * y * z) / 1000;
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    say(error.message, true);
    show();
    if (error.constructor.name === "TypeError") console.error(error);
  }
}
