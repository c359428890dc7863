// Builds the page into barrage/web/static, or with --package the modules of the npm package.
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { createHash } from "node:crypto";
import { gzipSync } from "node:zlib";
import { basename, extname, join } from "node:path";
import * as esbuild from "esbuild";

const web = fileURLToPath(new URL("..", import.meta.url));
const shared = {
  absWorkingDir: web,
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "eof",
  logLevel: "warning",
  loader: { ".css": "text" },
};

async function buildPackage() {
  await rm(join(web, "dist"), { recursive: true, force: true });
  await esbuild.build({
    ...shared,
    entryPoints: { client: "client/index.ts", grid: "grid/index.ts", chart: "chart/index.ts" },
    outdir: "dist",
    splitting: true,
  });
}

/** The name of a file with what it contains in it, so that browsers may keep it for ever. */
function hashed(name, content) {
  const hash = createHash("sha256").update(content).digest("hex").slice(0, 10);
  return `${basename(name, extname(name))}-${hash}${extname(name)}`;
}

/** Links that have a browser fetch what the page imports at once with it; what comes later is not among it. */
function preloads({ outputs }) {
  const [, { imports }] = Object.entries(outputs).find(([path]) => basename(path) === "page.js");
  return imports
    .filter(({ kind }) => kind === "import-statement")
    .map(({ path }) => `<link rel="modulepreload" href="${basename(path)}">`)
    .join("\n");
}

/** The page of the frame in which Perspective runs, and its script. */
async function frameFiles() {
  const { outputFiles } = await esbuild.build({
    ...shared,
    entryPoints: ["perspective/frame.ts"],
    minify: true,
    write: false,
  });
  const content = Buffer.from(outputFiles[0].contents);
  const script = hashed("perspective_frame.js", content);
  const html = await readFile(join(web, "perspective/perspective.html"), "utf8");
  return [
    [script, content],
    ["perspective.html", Buffer.from(html.replace("frame.js", script))],
  ];
}

/** The module of the widget: one file, for a notebook has no place to load others from. */
async function notebookModule() {
  const { outputFiles } = await esbuild.build({
    ...shared,
    entryPoints: ["notebook/widget.ts"],
    minify: true,
    write: false,
  });
  return Buffer.from(outputFiles[0].contents);
}

/** The files of the page by name: the same sources give the same bytes on every machine. */
export async function pageFiles() {
  const files = new Map();
  const { outputFiles, metafile } = await esbuild.build({
    ...shared,
    entryPoints: { page: "board/main.ts" },
    entryNames: "[name]",
    chunkNames: "[name]-[hash]",
    outdir: "static",
    splitting: true,
    minify: true,
    write: false,
    metafile: true,
  });
  const page = outputFiles.find(({ path }) => basename(path) === "page.js");
  for (const file of outputFiles) {
    if (file !== page) files.set(basename(file.path), Buffer.from(file.contents));
  }
  const script = hashed("page.js", page.contents);
  files.set(script, Buffer.from(page.contents));
  const css = await esbuild.build({
    ...shared,
    loader: { ".css": "css" },
    entryPoints: ["board/page.css"],
    minify: true,
    write: false,
  });
  const style = hashed("page.css", css.outputFiles[0].contents);
  files.set(style, Buffer.from(css.outputFiles[0].contents));
  files.set("notebook.js", await notebookModule());
  for (const [name, content] of await frameFiles()) files.set(name, content);
  const icon = await readFile(join(web, "board/icon.svg"));
  const iconName = hashed("icon.svg", icon);
  files.set(iconName, icon);
  const html = (await readFile(join(web, "board/index.html"), "utf8"))
    .replace("page.js", script)
    .replace("page.css", style)
    .replace("icon.svg", iconName);
  files.set("index.html", Buffer.from(html.replace("<!-- chunks -->", preloads(metafile))));
  return files;
}

async function buildPage(directory) {
  const files = await pageFiles();
  await rm(directory, { recursive: true, force: true });
  await mkdir(directory, { recursive: true });
  for (const [name, content] of files) await writeFile(join(directory, name), content);
  for (const [name, content] of [...files].sort()) {
    console.log(`${String(gzipSync(content, { level: 9 }).length).padStart(8)} bytes gzip  ${name}`);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  if (process.argv.includes("--package")) await buildPackage();
  else await buildPage(process.argv[2] ?? join(web, "../barrage/web/static"));
}
