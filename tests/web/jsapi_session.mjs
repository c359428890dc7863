// Deephaven's own JavaScript API against a server, unmodified: each step tells what it has seen. The
// same in Node and in a browser.
const HANG_MS = 60_000;

function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`hangs: ${what}`)), HANG_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

const next = (target, event, what = event) =>
  within(new Promise(resolve => target.addEventListener(event, e => resolve(e.detail), { once: true })), what);

function plain(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "object" && typeof value.asNumber === "function") return value.asNumber();
  return value;
}

const shown = (table, data) => data.rows.map(row => table.columns.map(column => plain(row.get(column))));

async function view(dh, table, first, last, is_right = () => true) {
  table.setViewport(first, last, table.columns);
  for (;;) {
    const rows = shown(table, await within(table.getViewportData(), "viewport"));
    if (is_right(rows)) return rows;
    await next(table, dh.Table.EVENT_UPDATED);
  }
}

// `dh`: the API. `options`: makes those of a client, its transport among them. `tell` gets a step
// and what was seen.
export async function run(dh, { url, options, tell }) {
  const client = new dh.CoreClient(url, options());
  await within(client.login({ type: dh.CoreClient.LOGIN_TYPE_ANONYMOUS }), "login");
  const connection = await within(client.getAsIdeConnection(), "connection");
  tell("connect", true);

  const table = await within(connection.getTable("numbers"), "fetch");
  tell("fetch", { size: table.size, columns: table.columns.map(c => [c.name, c.type]) });

  tell("viewport", await view(dh, table, 0, 2));
  tell("scroll", await view(dh, table, 500, 502, rows => rows.length === 3 && rows[0][0] === 500));

  // The other side changes row 500 when it is told to.
  const ticked = new Promise(resolve => {
    table.addEventListener(dh.Table.EVENT_UPDATED, e => {
      const rows = shown(table, e.detail);
      if (rows.length && rows[0][1] === -1) resolve(rows[0]);
    });
  });
  tell("ready for a tick", true);
  tell("tick", await within(ticked, "tick"));

  const sorted = await within(table.copy(), "copy");
  sorted.applySort([sorted.findColumn("k").sort().desc()]);
  tell("sort", await view(dh, sorted, 0, 1, rows => rows.length === 2 && rows[0][0] > 900));

  const filtered = await within(table.copy(), "copy");
  const name = filtered.findColumn("s");
  filtered.applyFilter([name.filter().eq(dh.FilterValue.ofString("even")).and(filtered.findColumn("k").filter().lessThan(dh.FilterValue.ofNumber(10)))]);
  tell("filter", await view(dh, filtered, 0, 9, rows => rows.length === 5));

  const totals = await within(filtered.getTotalsTable({ operationMap: { k: ["Sum", "Max"] }, showTotalsByDefault: true, showGrandTotalsByDefault: false, defaultOperation: "Skip" }), "totals");
  tell("totals", { columns: totals.columns.map(c => c.name), rows: await within((async () => {
    totals.setViewport(0, 0);
    const data = await totals.getViewportData();
    return data.rows.map(row => totals.columns.map(c => plain(row.get(c))));
  })(), "totals") });

  const custom = await within(table.copy(), "copy");
  const changed = next(custom, dh.Table.EVENT_CUSTOMCOLUMNSCHANGED, "custom columns");
  custom.applyCustomColumns(["twice = k * 2"]);
  await changed;
  tell("custom column", (await view(dh, custom, 0, 1)).map(row => row[3]));

  const distinct = await within(table.selectDistinct([name]), "distinct");
  tell("distinct", await view(dh, distinct, 0, 5, rows => rows.length === 2));

  const all = table.subscribe(table.columns);
  const whole = await next(all, dh.Table.EVENT_UPDATED, "full subscription");
  tell("full subscription", whole.rows.length);
  all.close();

  const snapshot = await within(table.createSnapshot({ rows: dh.RangeSet.ofRange(10, 12), columns: table.columns }), "snapshot");
  tell("snapshot", snapshot.rows.map(row => plain(row.get(table.columns[0]))));

  const sought = await within(table.seekRow(0, table.findColumn("k"), dh.ValueType.NUMBER ?? "Number", 42), "seek");
  tell("seek", sought);

  const writable = await within(connection.getTable("written"), "fetch");
  const input = await within(writable.inputTable(), "input table");
  await within(input.addRow({ name: "from a page", amount: 7 }), "add row");
  tell("input", await view(dh, writable, 0, 5, rows => rows.length === 1));

  try {
    const wrong = await within(table.copy(), "copy");
    const failed = next(wrong, dh.Table.EVENT_REQUEST_FAILED, "request failed");
    wrong.applyCustomColumns(["nonsense = no_such_column + 1"]);
    tell("wrong formula", String((await failed)?.errorMessage ?? "failed"));
  } catch (error) {
    tell("wrong formula", String(error));
  }
  tell("alive after it", await view(dh, await within(table.copy(), "copy"), 0, 0));

  // The other side restarts the server now.
  const left = next(connection, dh.IdeConnection.EVENT_DISCONNECT ?? "disconnect", "disconnect");
  const back = new Promise(resolve => {
    // While nobody listens each try fails too; the answer of the server that is there again ends it.
    const unheard = ["closed without trailers", "ERR_HTTP2_"];
    connection.addEventListener("requestfailed", e => {
      const told = String(e.detail);
      if (!unheard.some(each => told.includes(each))) resolve(told);
    });
    for (const target of [connection, client]) {
      target.addEventListener("reconnectauthfailed", () => resolve("reconnectauthfailed"), { once: true });
    }
  });
  tell("ready for a restart", true);
  await left;
  tell("disconnect", true);
  tell("back", await within(back, "reconnect"));
  const again = new dh.CoreClient(url, options());
  await within(again.login({ type: dh.CoreClient.LOGIN_TYPE_ANONYMOUS }), "login");
  const fresh = await within(await within(again.getAsIdeConnection(), "connection").then(c => c.getTable("numbers")), "fetch");
  tell("after the restart", await view(dh, fresh, 0, 0));
}
