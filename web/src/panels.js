// SPDX-License-Identifier: Apache-2.0
// Panels beside the image: predicted quality, kernels, and the voxel that was clicked.

const byId = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

const LIGHTS = {
  green: ["Probably good", "The model expects a good segmentation."],
  amber: ["Look at it", "The model is not sure of this segmentation."],
  red: ["Do not rely on it", "The model expects this segmentation to fail."],
  unknown: ["No predicted Dice", "This model was not calibrated."],
};

export function say(text, isError = false) {
  const box = byId("message");
  box.hidden = !text;
  box.textContent = text;
  box.classList.toggle("error", isError);
}

export function showTrust(result) {
  const quality = result.quality;
  const [title, why] = LIGHTS[quality.light] ?? LIGHTS.unknown;
  byId("light").className = `light ${quality.light}`;
  byId("light-text").textContent = title;
  byId("light-why").textContent =
    quality.predicted_dice === null ? why : `${why} Predicted Dice ${quality.predicted_dice.toFixed(2)}.`;
  showShift(result.shift);
  const rows = Object.entries(quality.frames[0].volumes_ml).map(([name, volume]) => {
    const row = element("tr");
    const color = result.classes.find((entry) => entry.name === name)?.color;
    const cell = element("td", "", name);
    cell.prepend(chip(color));
    row.append(cell, element("td", "number", `${volume.toFixed(1)} ml`));
    return row;
  });
  byId("volumes").tBodies[0].replaceChildren(...rows);
  byId("trust").hidden = false;
  byId("start").hidden = true;
}

function showShift(shift) {
  const [color, title, why] = !shift
    ? ["unknown", "Scanner not compared", "This bundle stores no statistics of the scans that it learnt from."]
    : shift.new === null
      ? ["unknown", "Scanner not compared", "The bundle knows too few source scans to tell."]
      : shift.new
        ? ["amber", "The scan looks unlike the training scans", `p = ${shift.p_value.toPrecision(2)}; nearest is ${shift.nearest}.`]
        : ["green", "The scan looks like the training scans", `p = ${shift.p_value.toPrecision(2)}; nearest is ${shift.nearest}.`];
  byId("shift").className = `light ${color}`;
  byId("shift-text").textContent = title;
  byId("shift-why").textContent = shift && shift.new !== null ? `${why} One scan is a weak test.` : why;
}

export function showKernels(result, onToggle) {
  const order = new Map(result.classes.map((entry, index) => [entry.name, entry.value ? index : result.classes.length]));
  const rank = (kernel) => order.get(kernel.tissue) ?? result.classes.length + 1;
  const kernels = [...result.kernels].sort((a, b) => rank(a) - rank(b) || b.certainty - a.certainty);
  const items = kernels.map((kernel) => {
    const button = row(kernel.kernel, kernel.tissue, colorOf(result, kernel.tissue), kernel.certainty, "button");
    button.title = Object.entries(kernel.by_class).map(([name, share]) => `${name} ${percent(share)}`).join(", ");
    button.dataset.kernel = kernel.kernel;
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => onToggle(kernel.kernel));
    const item = element("li");
    item.append(button);
    return item;
  });
  byId("kernel-list").replaceChildren(...items);
  // a network without kernels has no list; the note says why
  byId("kernel-list").hidden = byId("kernel-hint").hidden = !items.length;
  byId("note").textContent = items.length ? `Tissue and per cent: ${result.note}` : result.note;
  byId("kernels").hidden = false;
}

export function pressKernel(number) {
  for (const button of byId("kernel-list").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.kernel) === number));
  }
}

export function showVoxel(result, voxel) {
  byId("voxel-place").textContent = `Voxel ${voxel.voxel.join(", ")} was labelled ${voxel.name}.${voxel.kernels.length ? " Explained by:" : ""}`;
  const shown = voxel.kernels.filter((entry, index) => index < 5 && entry.weight >= 0.005);
  byId("voxel-kernels").replaceChildren(
    ...shown.map((entry) => row(entry.kernel, entry.tissue, colorOf(result, entry.tissue), entry.weight, "li")),
  );
  byId("voxel").hidden = false;
}

export function clear() {
  for (const id of ["trust", "kernels", "voxel"]) byId(id).hidden = true;
  byId("start").hidden = false;
}

function row(number, tissue, color, share, tag) {
  const line = element(tag, "row");
  const name = element("span", "name", tissue);
  name.prepend(chip(color));
  const bar = element("span", "bar");
  const fill = element("i");
  fill.style.width = `${100 * share}%`;
  bar.append(fill);
  line.append(element("span", "index", String(number)), name, bar, element("span", "number", percent(share)));
  return line;
}

function chip(color) {
  const box = element("span", "chip");
  if (color) box.style.background = color;
  return box;
}

const colorOf = (result, name) => result.classes.find((entry) => entry.name === name)?.color ?? "";

function element(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}
