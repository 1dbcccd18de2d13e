// SPDX-License-Identifier: Apache-2.0
// Choose a study, run a model, look at masks and kernels, ask about a voxel.
import { getFile, getJson, openSession, postForm, request } from "./api.js";
import { clear, pressKernel, say, showKernels, showTrust, showVoxel } from "./panels.js";
import { Viewer } from "./viewer.js";

const byId = (id) => document.getElementById(id);
const canvas = byId("canvas");
const viewer = new Viewer(canvas, moved);
const state = { query: "", result: null, kernel: null, clicked: false, asked: 0 };
window.vmfseg = { viewer, state }; // for tests, and for the curious

main();

async function main() {
  const [models, store] = await attempt(() => Promise.all([getJson("/vmfseg/models"), getJson("/datastore/?output=all")]));
  byId("model").replaceChildren(...Object.keys(models).map((name) => new Option(name)));
  const ids = Object.keys(store.objects);
  byId("study").replaceChildren(new Option(ids.length ? "choose…" : "no images here", ""), ...ids.map((id) => new Option(id)));
  byId("study").addEventListener("change", (event) => event.target.value && pickStudy(event.target.value));
  byId("file").addEventListener("change", (event) => event.target.files[0] && pickFile(event.target.files[0]));
  byId("frame").addEventListener("change", () => state.result && run());
  byId("run").addEventListener("click", run);
  byId("mask").addEventListener("change", applyOpacity);
  byId("opacity").addEventListener("input", applyOpacity);
  byId("slice").addEventListener("input", (event) => { viewer.slice = Number(event.target.value); });
  byId("views").addEventListener("click", (event) => event.target.dataset.view && chooseView(event.target.dataset.view));
  canvas.addEventListener("pointerdown", () => { state.clicked = true; }, { capture: true });
  canvas.addEventListener("pointerup", () => setTimeout(askVoxel, 0));
  document.body.dataset.ready = "1";
}

async function pickStudy(id) {
  await attempt(async () => {
    await begin(`image=${encodeURIComponent(id)}`);
    const response = await request(`/datastore/image?image=${encodeURIComponent(id)}`);
    const name = /filename="?([^";]+)/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? "image.nii.gz";
    await viewer.show(new File([await response.arrayBuffer()], name));
    chosen(id);
  });
}

async function pickFile(file) {
  await attempt(async () => {
    await begin("");
    state.query = `session_id=${await openSession(file)}`;
    byId("study").value = "";
    await viewer.show(file);
    chosen(file.name);
  });
}

async function begin(query) {
  say("");
  clear();
  Object.assign(state, { query, result: null, kernel: null, clicked: false });
  byId("frame-field").hidden = true;
  byId("frame").value = 0;
  byId("mask").disabled = true;
  byId("hint").textContent = "Loading…";
}

function chosen(name) {
  chooseView(viewer.acquired);
  byId("hint").textContent = "";
  byId("run").disabled = false;
  document.title = `${name} – vmfseg`;
}

async function run() {
  const button = byId("run");
  button.disabled = true;
  button.textContent = "Running…";
  say("");
  await attempt(async () => {
    const model = encodeURIComponent(byId("model").value);
    const result = await postForm(`/vmfseg/segment/${model}?${state.query}&frame=${byId("frame").value}`);
    const [image, mask] = await Promise.all([map(result, "image"), map(result, "mask")]);
    const slice = viewer.slice;
    await viewer.show(image);
    Object.assign(state, { result, kernel: null });
    await viewer.showMask(mask, result.classes, opacity());
    viewer.slice = slice;
    byId("mask").disabled = false;
    byId("frame-field").hidden = result.frames < 2;
    byId("frame").max = result.frames - 1;
    byId("voxel").hidden = true;
    showTrust(result);
    showKernels(result, toggleKernel);
    if (result.quality.warnings.length) say(result.quality.warnings.join("\n"));
  });
  button.disabled = false;
  button.textContent = "Run model";
}

async function toggleKernel(number) {
  await attempt(async () => {
    if (state.kernel === number) {
      viewer.drop("heat");
      state.kernel = null;
    } else {
      await viewer.showHeat(await map(state.result, `kernel-${number}`), 0.8);
      state.kernel = number;
    }
    pressKernel(state.kernel);
    applyOpacity();
  });
}

async function askVoxel() {
  if (!state.clicked || !state.result || !viewer.place) return;
  state.clicked = false;
  const turn = (state.asked += 1);
  const [x, y, z] = viewer.place.mm;
  await attempt(async () => {
    const voxel = await getJson(`/vmfseg/result/${state.result.id}/voxel?x=${x}&y=${y}&z=${z}`);
    if (turn === state.asked) showVoxel(state.result, voxel);
  });
}

function moved() {
  const slider = byId("slice");
  slider.max = Math.max(0, viewer.slices - 1);
  slider.value = viewer.slice;
  byId("slice-text").textContent = viewer.slices ? `${viewer.slice + 1} of ${viewer.slices}` : "–";
}

function chooseView(name) {
  for (const button of byId("views").children) button.setAttribute("aria-pressed", String(button.dataset.view === name));
  viewer.setView(name);
  moved();
}

// with a kernel on top, the mask steps back so that both can be seen
const opacity = () => (byId("mask").checked ? Number(byId("opacity").value) / 100 : 0);
const applyOpacity = () => viewer.setOpacity("mask", opacity() * (state.kernel === null ? 1 : 0.5));
const map = (result, name) => getFile(`/vmfseg/result/${result.id}/${name}.nii.gz`, `${name}.nii.gz`);

async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    byId("hint").textContent = "";
    say(error.message, true);
    if (error.constructor.name === "TypeError") console.error(error);
    return undefined;
  }
}
