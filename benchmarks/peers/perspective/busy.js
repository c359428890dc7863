// A table of 50 rows by 12 columns whose cells all change ten times a second, in Perspective's
// viewer, with its engine in a worker of the page.
import perspective from "/node_modules/@perspective-dev/client/dist/cdn/perspective.js";
import "/node_modules/@perspective-dev/viewer/dist/cdn/perspective-viewer.js";
import "/node_modules/@perspective-dev/viewer-datagrid/dist/cdn/perspective-viewer-datagrid.js";

const NAMES = Array.from({ length: 11 }, (_, i) => `c${i}`);
const rows = () =>
  Array.from({ length: 50 }, (_, id) => ({
    id,
    ...Object.fromEntries(NAMES.map((name) => [name, Math.round(Math.random() * 1e5) / 100])),
  }));

const viewer = document.querySelector("perspective-viewer");
const worker = await perspective.worker();
const table = await worker.table(rows(), { index: "id" });
await viewer.load(table);
globalThis.change = () => table.update(rows());
