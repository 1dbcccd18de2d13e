// SPDX-License-Identifier: Apache-2.0
// Panels beside the image: predicted quality, volumes, kernels, and the voxel that was clicked.
import { byId, chip, element } from "./dom.js";

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;
const range = (interval) => (interval ? ` (${interval.map((bound) => bound.toFixed(2)).join(" to ")})` : "");
const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

const FLAGS = {
  green: ["Probably good", "The model expects a good segmentation."],
  amber: ["Look at it", "The model is not sure of this segmentation."],
  red: ["Do not rely on it", "The model expects this segmentation to fail."],
  unknown: ["No predicted Dice", "This model was not calibrated."],
};

export function showQuality(result) {
  byId("quality").hidden = !result;
  if (!result) return;
  const { light, light_reasons: reasons, predicted_dice: dice, interval } = result.quality;
  const [title, why] = FLAGS[light] ?? FLAGS.unknown;
  byId("flag").className = `light ${light}`;
  byId("flag-text").textContent = title;
  byId("flag-why").textContent = reasons.length ? sentence(reasons.join("; ")) : why;
  byId("dice").hidden = dice === null;
  byId("dice").textContent = dice === null ? "" : `Predicted Dice ${dice.toFixed(2)}${range(interval)}`;
  showShift(result.shift);
}

function showShift(shift) {
  const known = shift && shift.new !== null;
  const [color, title] = !known
    ? ["unknown", "Scanner not compared"]
    : shift.new ? ["amber", "Unlike the training scans"] : ["green", "Like the training scans"];
  const why = known
    ? `p = ${shift.p_value.toPrecision(2)}; nearest is ${shift.nearest}. One scan is a weak test.`
    : shift ? "The model knows too few source scans to tell." : "This model has no statistics of the scans that it learnt from.";
  byId("shift").className = `light ${color}`;
  byId("shift-text").textContent = title;
  byId("shift-why").textContent = why;
}

// Volumes of the label map as it is now, drawn or predicted.
export function showVolumes(map, classes, voxelMl) {
  byId("volumes").hidden = !map;
  if (!map) return;
  const counts = map.counts();
  const rows = classes.filter((entry) => entry.value).map((entry) => {
    const row = element("tr");
    const name = element("td", "", entry.name);
    name.prepend(chip(entry.color));
    row.append(name, element("td", "number", `${(counts[entry.value] * voxelMl).toFixed(1)} ml`));
    return row;
  });
  byId("volumes").tBodies[0].replaceChildren(...rows);
  byId("volumes-of").textContent = map.strokes.length ? "Corrected label" : map.result ? `Prediction of ${map.result.model}` : "Saved label";
}

// Box around the largest part of what was predicted, for cropping.
export function showBox(result) {
  byId("box").hidden = !result?.box;
  const spans = (result?.box ?? []).map(([first, end]) => `${first} to ${end - 1}`);
  byId("box").textContent = spans.length ? `Box around the prediction, in voxels: ${spans.join("; ")}.` : "";
}

export function showKernels(result, active, onToggle) {
  byId("kernels").hidden = !result;
  if (!result) return;
  const order = new Map(result.classes.map((entry, index) => [entry.name, entry.value ? index : result.classes.length]));
  const rank = (kernel) => order.get(kernel.tissue) ?? result.classes.length + 1;
  const kernels = [...result.kernels].sort((a, b) => rank(a) - rank(b) || b.certainty - a.certainty);
  const items = kernels.map((kernel) => {
    const button = row(result, kernel.kernel, kernel.tissue, kernel.certainty, "button");
    button.title = Object.entries(kernel.by_class).map(([name, share]) => `${name} ${percent(share)}`).join(", ");
    button.dataset.kernel = kernel.kernel;
    button.setAttribute("aria-pressed", String(kernel.kernel === active));
    button.addEventListener("click", () => onToggle(kernel.kernel));
    const item = element("li");
    item.append(button);
    return item;
  });
  byId("kernel-list").replaceChildren(...items);
  byId("kernel-list").hidden = byId("kernel-hint").hidden = !items.length;
  byId("note").textContent = items.length
    ? `Tissue and per cent: ${result.note}`
    : `${result.note} Masks, predicted Dice, volumes and corrections work as for other models.`;
}

export function showVoxel(result, voxel) {
  byId("voxel").hidden = !voxel;
  if (!voxel) return;
  byId("voxel-place").textContent = `Voxel ${voxel.voxel.join(", ")} was labelled ${voxel.name}.${voxel.kernels.length ? " Explained by:" : ""}`;
  const shown = voxel.kernels.filter((entry, index) => index < 5 && entry.weight >= 0.005);
  byId("voxel-kernels").replaceChildren(...shown.map((entry) => row(result, entry.kernel, entry.tissue, entry.weight, "li")));
}

function row(result, number, tissue, share, tag) {
  const line = element(tag, "row");
  const name = element("span", "name", tissue);
  name.prepend(chip(result.classes.find((entry) => entry.name === tissue)?.color));
  const bar = element("span", "bar");
  const fill = element("i");
  fill.style.width = `${100 * share}%`;
  bar.append(fill);
  line.append(element("span", "index", String(number)), name, bar, element("span", "number", percent(share)));
  return line;
}
