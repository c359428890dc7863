// Runs test/*.test.ts in Node's own test runner.
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { join } from "node:path";
import * as esbuild from "esbuild";

const web = fileURLToPath(new URL("..", import.meta.url));
const names = readdirSync(join(web, "test")).filter((name) => name.endsWith(".test.ts"));
await esbuild.build({
  absWorkingDir: web,
  entryPoints: names.map((name) => join("test", name)),
  outdir: "build/test",
  outExtension: { ".js": ".mjs" },
  bundle: true,
  format: "esm",
  platform: "node",
  target: "es2022",
  external: ["apache-arrow"],
  loader: { ".css": "text" },
  sourcemap: "inline",
  logLevel: "warning",
});
const files = names.map((name) => join(web, "build/test", name.replace(/\.ts$/, ".mjs")));
const run = spawnSync(process.execPath, ["--enable-source-maps", "--test", ...files], {
  stdio: "inherit",
  cwd: web,
});
process.exit(run.status ?? 1);
