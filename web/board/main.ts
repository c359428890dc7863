import { Connection } from "../client/connection.ts";
import { button, element } from "../grid/dom.ts";
import { defineLiveGrid } from "../grid/live_grid.ts";
import { Board } from "./board.ts";
import { boardOf } from "./layout.ts";
import { readLink, writeLink } from "./link.ts";
import { QueryBar } from "./query_bar.ts";
import { SavedBoards } from "./saved_boards.ts";
import { SignIn } from "./sign_in.ts";
import { TablesList } from "./tables_list.ts";
import { themeButton } from "./theme.ts";

defineLiveGrid();

const connection = new Connection(new URL("/socket", location.href).href.replace(/^http/, "ws"));
let isPlaced = false;

const board = new Board(connection, {
  changed: () => history.replaceState(null, "", writeLink(board.state)),
  focused: (body) => {
    query.show(body?.operations ?? []);
    document.title = body === null ? "barrage" : `${body.table} · barrage`;
  },
});
const query = new QueryBar(
  () => board.current?.columns ?? [],
  (operations) => board.runQuery(operations),
);
const tables = new TablesList(connection, (table, isAdded) => board.open(table, isAdded));
const boards = new SavedBoards(connection, board);
const signIn = new SignIn(() => connection.retry());
const side = button("☰", "Show or hide the list of tables", () => {
  const isHidden = document.body.classList.toggle("noside");
  side.setAttribute("aria-expanded", String(!isHidden));
});
side.setAttribute("aria-label", "List of tables");
side.setAttribute("aria-expanded", "true");
side.className = "iconbutton";
const caller = element("span", { class: "caller" });

document.body.append(
  element("header", { class: "top" }, [
    side,
    element("h1", { class: "brand" }, ["barrage"]),
    query.element,
    caller,
    board.alerts.element,
    boards.element,
    themeButton(),
  ]),
  element("div", { class: "page" }, [tables.element, board.element]),
  signIn.element,
);

function showLink(): boolean {
  const linked = readLink(location.hash);
  if (linked === null) return false;
  isPlaced = true;
  board.state = linked;
  return true;
}

connection.changed.add(({ state, reason, caller: who }) => {
  caller.textContent = who === null || who.name === "anonymous" ? "" : who.name;
  if (state === "refused") signIn.ask(reason);
  if (state !== "live" || isPlaced) return;
  // Without a link the page shows the first table there is.
  void tables.load().then(() => {
    if (isPlaced || tables.first === null || board.panels.length > 0) return;
    isPlaced = true;
    board.state = boardOf(tables.first);
  });
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) connection.pause();
  else connection.resume();
});
addEventListener("online", () => connection.retry());
addEventListener("hashchange", showLink);
showLink();
connection.open();
