// SPDX-License-Identifier: Apache-2.0
// Requests to the server that this page came from; errors carry the server's own words.

const TOKEN = "vmfseg-token";

export class ServerError extends Error {}

export async function request(path, options = {}) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const response = await fetch(path, { ...options, headers });
    if (response.status === 401) {
      await askToken();
      continue;
    }
    if (!response.ok) throw new ServerError(await explain(response));
    return response;
  }
}

export const getJson = async (path) => (await request(path)).json();
export const getFile = async (path, name) => new File([await (await request(path)).arrayBuffer()], name);

export async function postForm(path) {
  const form = new FormData();
  form.append("params", "{}");
  return (await request(path, { method: "POST", body: form })).json();
}

export async function openSession(file) {
  const form = new FormData();
  form.append("files", file);
  return (await (await request("/session/", { method: "PUT", body: form })).json()).session_id;
}

async function explain(response) {
  try {
    const told = await response.json();
    return [`${told.code}: ${told.rule}`, told.found, told.fix && `Cure: ${told.fix}`].filter(Boolean).join("\n");
  } catch {
    return `The server answered ${response.status}.`;
  }
}

function askToken() {
  const dialog = document.getElementById("login");
  const field = document.getElementById("token");
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => { sessionStorage.setItem(TOKEN, field.value.trim()); resolve(); }, { once: true });
    field.value = "";
    dialog.showModal();
  });
}
