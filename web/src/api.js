// SPDX-License-Identifier: Apache-2.0
// Requests to the server that this page came from; errors carry the server's own words.
import { ask, byId } from "./dom.js";

const TOKEN = "vmfseg-token";

export class ServerError extends Error {}

export async function request(path, options = {}) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
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

export async function sendForm(method, path, fields) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  return (await request(path, { method, body: form })).json();
}

export async function postJson(path, value) {
  const headers = { "Content-Type": "application/json" };
  return (await request(path, { method: "POST", headers, body: JSON.stringify(value) })).json();
}

// The image of a study with the file name that the server gives it: its ending tells the format.
export async function getStudy(id) {
  const response = await request(`/datastore/image?image=${encodeURIComponent(id)}`);
  return new File([await response.arrayBuffer()], fileName(response, "image.nii.gz"));
}

export async function getLabel(id) {
  const response = await request(`/datastore/label?label=${encodeURIComponent(id)}&tag=final`);
  return new File([await response.arrayBuffer()], fileName(response, "label.nii.gz"));
}

function fileName(response, otherwise) {
  return /filename="?([^";]+)/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? otherwise;
}

async function explain(response) {
  try {
    const told = await response.json();
    const about = [told.subject, told.found].filter(Boolean).join(": ");
    return [sentence(told.rule), about, sentence(told.fix), told.code].filter(Boolean).join("\n");
  } catch {
    return `The server answered ${response.status}.`;
  }
}

const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".") : "");

async function askToken() {
  const field = byId("token");
  field.value = "";
  await ask(byId("login"));
  sessionStorage.setItem(TOKEN, field.value.trim());
}
