// SPDX-License-Identifier: Apache-2.0
// Keyboard: what each key does. Fields and open dialogs keep their own keys.

export function bindKeys(canvas, actions) {
  const wants = (event) => {
    const key = event.ctrlKey || event.metaKey ? `Ctrl+${event.key.toLowerCase()}` : event.key;
    const on = (selector) => event.target.closest?.(selector);
    const typed = on("select, dialog, input[type=number], input[type=password]");
    const moved = key.startsWith("Arrow") && on("input[type=range]"); // arrows move a slider that has the focus
    const pressed = key === " " && on("button, summary, input"); // space presses what has the focus
    return typed || moved || pressed || event.altKey ? undefined : actions[key];
  };
  document.addEventListener("keydown", (event) => {
    const action = wants(event);
    if (action) {
      event.preventDefault();
      action();
    }
    if (event.target === canvas) event.stopPropagation(); // NiiVue has keys of its own
  }, { capture: true });
  document.addEventListener("keyup", (event) => event.target === canvas && event.stopPropagation(), { capture: true });
}
