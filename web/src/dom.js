// SPDX-License-Identifier: Apache-2.0
// Small helpers for the document.

export const byId = (id) => document.getElementById(id);

export function element(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}

export function chip(color) {
  const box = element("span", "chip");
  if (color) box.style.background = color;
  return box;
}

// Mark the pressed one of a group of buttons, by the value of a data attribute.
export function press(group, key, value) {
  for (const button of group.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.dataset[key] === String(value)));
  }
}

export function say(text, isError = false) {
  const box = byId("message");
  box.hidden = !text;
  box.textContent = text;
  box.classList.toggle("error", isError);
}

// Ask by a dialog whose buttons have values; resolves to the value, "" if it was closed otherwise.
export function ask(dialog) {
  dialog.returnValue = "";
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
    dialog.showModal();
  });
}
