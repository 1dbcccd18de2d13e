// SPDX-License-Identifier: Apache-2.0
// Build the page into the package: one script, one style sheet, one document, and the licences of what is inside.
import { build } from "esbuild";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { copyFile, mkdir, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "vmfseg", "serving", "assets");

await rm(target, { recursive: true, force: true });
await mkdir(target, { recursive: true });
const result = await build({
  entryPoints: [join(here, "src", "main.js")],
  outfile: join(target, "app.js"),
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  metafile: true,
  logLevel: "warning",
});
await copyFile(join(here, "src", "style.css"), join(target, "style.css"));
await writeFile(join(target, "licenses.txt"), licenses(Object.keys(result.metafile.inputs)));
await copyFile(join(here, "src", "index.html"), join(target, "index.html")); // last: the server looks for it

function licenses(inputs) {
  const names = new Set();
  for (const input of inputs) {
    const found = input.match(/.*node_modules\/((?:@[^/]+\/)?[^/]+)\//);
    if (found) names.add(found[1]);
  }
  return [...names].sort().map(describe).join("\n\n");
}

function describe(name) {
  const folder = join(here, "node_modules", name);
  const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  const text = file && existsSync(join(folder, file)) ? readFileSync(join(folder, file), "utf8").trim() : "";
  return `${name} ${about.version} (${about.license ?? "see its package"})\n${text}`;
}
