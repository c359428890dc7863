var l=`:host {
  display: block;
  min-height: 160px;
  height: 100%;
  color: var(--text);
  background: var(--surface);
  font: 13px/1.35 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  --text: light-dark(#16202b, #e3eaf1);
  --quiet: light-dark(#566370, #93a3b3);
  --surface: light-dark(#ffffff, #11171e);
  --raised: light-dark(#f4f6f9, #18202a);
  --line: light-dark(#dfe4ea, #26303b);
  --stripe: light-dark(#fafbfc, #141b23);
  --hover: light-dark(#edf1f6, #1e2833);
  --accent: light-dark(#0b62c4, #6cb2ff);
  --accent-soft: light-dark(#dcebfd, #16324f);
  --up: light-dark(#c9f0d8, #14452f);
  --down: light-dark(#fbd9d9, #54232a);
  --changed: light-dark(#fdeec4, #4a3d14);
  --new: light-dark(#e7f3ff, #14283d);
  --good: light-dark(#0b6b3a, #5fd698);
  --bad: light-dark(#b3261e, #ff9d96);
  --wary: light-dark(#7a4d00, #f0c060);
}
:host([hidden]) { display: none; }
[hidden] { display: none !important; }
* { box-sizing: border-box; }
.frame { position: relative; display: flex; flex-direction: column; height: 100%; min-height: inherit; }

.tools { display: flex; flex-wrap: wrap; align-items: center; gap: 6px; padding: 6px 10px; border-bottom: 1px solid var(--line); background: var(--raised); }
.title { font-size: 14px; font-weight: 650; margin: 0 6px 0 0; max-width: 26ch; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.tools input { width: 11ch; flex: 0 1 auto; }
.tools input[type="search"] { width: 18ch; }
.frame { container-type: inline-size; }
@container (max-width: 640px) {
  .tools { gap: 4px; padding: 5px 8px; }
  .tools input { width: 8ch; }
  .tools input[type="search"] { width: 9ch; }
  .tool { padding: 3px 7px; font-size: 12px; }
}
input { font: inherit; color: inherit; background: var(--surface); border: 1px solid var(--line); border-radius: 6px; padding: 3px 8px; min-width: 0; }
input::placeholder { color: var(--quiet); opacity: 1; }
button { font: inherit; color: inherit; cursor: pointer; }
.tool, .message button { background: var(--surface); border: 1px solid var(--line); border-radius: 6px; padding: 3px 10px; white-space: nowrap; }
.tool:hover { background: var(--hover); }
.tool[aria-pressed="true"] { background: var(--accent-soft); border-color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }

.pill { margin-left: auto; border-radius: 999px; padding: 2px 10px; font-size: 12px; border: 1px solid currentColor; color: var(--wary); white-space: nowrap; overflow: hidden; text-overflow: ellipsis; max-width: 44ch; }
.pill::before { content: "●"; margin-right: 6px; }
.pill.live { color: var(--good); }
.pill.refused, .pill.failed, .pill.ended, .pill.closed { color: var(--bad); }
.pill.paused::before { content: "❚❚"; font-size: 9px; }

.message { display: flex; gap: 12px; align-items: center; padding: 6px 12px; background: var(--down); border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }

.grid { position: relative; flex: 1; min-height: 0; display: flex; flex-direction: column; overflow: hidden; outline: none; touch-action: none; user-select: none; font-variant-numeric: tabular-nums; }
.grid:focus-visible { box-shadow: inset 0 0 0 2px var(--accent); }
.head { position: relative; flex: none; z-index: 3; background: var(--raised); border-bottom: 1px solid var(--line); margin-right: 14px; overflow: hidden; }
.head .row { position: relative; height: 28px; }
.head .row.filters { height: 30px; }
.body { position: relative; flex: 1; min-height: 0; overflow: hidden; margin: 0 14px 14px 0; }
.body > .row { position: absolute; top: 0; left: 0; width: 100%; height: 24px; contain: layout style paint; }
.row { --edge: var(--numberwidth); }
.row.even { background: var(--stripe); }
.body > .row:hover { background: var(--hover); }
.row.new { background: var(--new); }
.row.anchored .rownumber { color: var(--accent); font-weight: 700; box-shadow: inset 3px 0 0 var(--accent); }
.row.old .cell { opacity: 0.55; }
.row.unseen .moving, .row.unseen .frozen { background: repeating-linear-gradient(90deg, transparent 0 18px, var(--line) 18px 74px, transparent 74px 110px) 0 9px / 110px 6px repeat-x; }
.rownumber { position: absolute; left: 0; top: 0; bottom: 0; width: var(--numberwidth); padding: 0 8px; text-align: right; color: var(--quiet); background: var(--raised); border-right: 1px solid var(--line); line-height: 24px; z-index: 2; font-size: 12px; }
.head .rownumber { line-height: 28px; }
.frozen { position: absolute; left: var(--numberwidth); top: 0; bottom: 0; width: var(--frozenwidth); z-index: 1; background: inherit; box-shadow: 1px 0 0 var(--line); }
.frozen:empty { box-shadow: none; }
.row > .frozen { background-color: var(--surface); }
.row.even > .frozen { background-color: var(--stripe); }
.head .frozen { background-color: var(--raised); }
.moving { position: absolute; left: calc(var(--numberwidth) + var(--frozenwidth)); top: 0; bottom: 0; right: 0; transform: translateX(var(--scrolled)); }
.row { clip-path: inset(0); }

.cell { position: absolute; top: 0; height: 100%; padding: 0 10px; line-height: 24px; white-space: pre; overflow: hidden; text-overflow: ellipsis; border-right: 1px solid var(--line); transition: background-color 0.4s; }
.cell.number { text-align: right; }
.cell.null { color: var(--quiet); font-style: italic; }
.cell.up, .cell.down, .cell.changed { transition: none; }
/* Arrows are pictures: boxes with text, made and laid out with every change, cost a third of the page's time. */
.cell.up { background: conic-gradient(from 153deg at 50% 0, var(--text) 54deg, transparent 0) 3px 50% / 7px 7px no-repeat var(--up); }
.cell.down { background: conic-gradient(from -27deg at 50% 100%, var(--text) 54deg, transparent 0) 3px 50% / 7px 7px no-repeat var(--down); }
.cell.changed { background: var(--changed); }
.cell.selected { background-color: var(--accent-soft); }
.grid .cell.focused { box-shadow: inset 0 0 0 2px var(--quiet); }
.grid:focus-visible .cell.focused, .grid:focus .cell.focused { box-shadow: inset 0 0 0 2px var(--accent); }

.headcell { display: flex; gap: 4px; align-items: center; font-weight: 600; cursor: pointer; line-height: 28px; }
.headcell.number { justify-content: flex-end; }
.headcell:hover { background: var(--hover); }
.headcell .label { overflow: hidden; text-overflow: ellipsis; }
.headcell .order { color: var(--accent); font-size: 10px; flex: none; }
.headcell .handle { position: absolute; right: 0; top: 0; bottom: 0; width: 7px; cursor: col-resize; }
.headcell .handle:hover { background: var(--accent); }
.headcell.dragged { opacity: 0.5; }
.headcell.target { box-shadow: inset 2px 0 0 var(--accent); }
.filtercell { padding: 2px 3px; }
.filtercell input { width: 100%; padding: 1px 6px; font-size: 12px; }
.filtercell input[aria-invalid="true"] { border-color: var(--bad); box-shadow: 0 0 0 1px var(--bad); }

.bar { position: absolute; background: var(--raised); z-index: 4; touch-action: none; }
.bar-y { right: 0; top: 0; bottom: 14px; width: 14px; border-left: 1px solid var(--line); }
.bar-x { left: 0; right: 14px; bottom: 0; height: 14px; border-top: 1px solid var(--line); }
.bar .thumb { position: absolute; border-radius: 6px; background: light-dark(#a9b4c0, #4a5866); }
.bar-y .thumb { left: 3px; right: 3px; top: 0; }
.bar-x .thumb { top: 3px; bottom: 3px; left: 0; }
.bar:hover .thumb { background: light-dark(#7d8b99, #6b7c8d); }
.bar.idle .thumb { visibility: hidden; }

.empty { position: absolute; inset: 60px 0 auto; text-align: center; color: var(--quiet); }
.status { display: flex; flex-wrap: wrap; gap: 2px 16px; justify-content: space-between; padding: 4px 10px; border-top: 1px solid var(--line); background: var(--raised); color: var(--quiet); font-size: 12px; font-variant-numeric: tabular-nums; }

.menu { position: fixed; inset: auto; margin: 0; padding: 5px; min-width: 220px; max-height: min(70vh, 520px); overflow: auto; color: var(--text); background: var(--surface); border: 1px solid var(--line); border-radius: 10px; box-shadow: 0 8px 30px rgb(0 0 0 / 0.25); }
.menu button { display: flex; gap: 8px; width: 100%; align-items: baseline; padding: 4px 10px; border: 0; border-radius: 6px; background: none; text-align: left; }
.menu button:hover, .menu button:focus { background: var(--accent-soft); outline: none; }
.menu button[disabled] { color: var(--quiet); cursor: default; }
.menu .check { width: 1em; color: var(--accent); }
.menu .itemlabel { flex: 1; overflow: hidden; text-overflow: ellipsis; max-width: 40ch; white-space: nowrap; }
.menu .hint { color: var(--quiet); font-size: 12px; }
.menu [role="separator"] { border-top: 1px solid var(--line); margin: 5px 4px; }

@media (prefers-reduced-motion: reduce) {
  * { transition: none !important; animation: none !important; }
}
@media (forced-colors: active) {
  .cell.focused { outline: 2px solid Highlight; outline-offset: -2px; }
  .cell.selected { outline: 1px dashed Highlight; outline-offset: -2px; }
}
`;function a(e){switch(e.kind){case"live":return"nothing was missed";case"replayed":return`replayed ${e.steps} ${e.steps===1?"step":"steps"}`;case"resnapshot":return`taken anew: ${e.reason}`;default:return""}}function d(e){let{state:t,reason:r}=e;if(t!=="live")return{kind:t,text:t,title:r};if(e.hasFailed)return{kind:"failed",text:"failed",title:"see the message above the table"};if(e.isPaused)return{kind:"paused",text:"paused",title:"press Space to go on"};if(e.isLoading)return{kind:"loading",text:"loading",title:""};let o=a(e.recovery);return o===""||e.recoveredAgo>15e3?{kind:"live",text:"live",title:o}:{kind:"live",text:`live · ${o}`,title:o}}export{l as a,d as b};
