import{a as v}from"./chunk-C5XDOXKA.js";import{a as c,c as y,d as x,e as w,f as k}from"./chunk-XERFKVYQ.js";import{a as s,b as a,h as b,i as g}from"./chunk-LVP35ELF.js";function u(r){return typeof r=="object"&&r!==null&&!Array.isArray(r)}function h(r,e){let t=r[e];if(typeof t!="string")throw new s(`a message has no text ${e}`);return t}function l(r,e){let t=r[e];if(!Number.isSafeInteger(t))throw new s(`a message has no number ${e}`);return t}function M(r){let e=u(r)?Object.entries(r):[];return Object.fromEntries(e.filter(t=>typeof t[1]=="string"))}function L(r){let e=u(r)?r:{},t=Array.isArray(e.roles)?e.roles.map(String):[];return{name:typeof e.name=="string"?e.name:"",roles:t}}function S(r){let e;try{e=JSON.parse(r)}catch{throw new s("a text message is no JSON")}if(!u(e))throw new s("a text message is no JSON object");switch(e.type){case"welcome":return{type:"welcome",caller:L(e.caller),version:typeof e.version=="string"?e.version:""};case"headers":return{type:"headers",stream:l(e,"stream"),headers:M(e.headers)};case"view":return{type:"view",stream:l(e,"stream"),token:h(e,"token")};case"end":return{type:"end",stream:l(e,"stream")};case"result":return{type:"result",call:l(e,"call"),body:e.body};case"error":return{type:"error",..."call"in e?{call:l(e,"call")}:{stream:l(e,"stream")},code:h(e,"code"),message:h(e,"message")};default:return null}}var C="barrage-flight.v1",P=4410,W=new Set([1002,1007,1009,4400,4401,4403]),D=250,j=8e3,A=1e4,F=5e3,I="barrage.boards",p=class{constructor(e,t,n){this.connection=e;this.number=t;this.handler=n}connection;number;handler;received=0;isPaused=!1;staysAwake=!1;send(e){this.connection.sendData(this.number,e)}acknowledge(){this.connection.acknowledge(this)}pause(){this.isPaused=!0,this.connection.sendControl({type:"pause",streams:[this.number]})}resume(){this.isPaused=!1,this.connection.sendControl({type:"resume",streams:[this.number]})}halfClose(){this.connection.sendControl({type:"half_close",stream:this.number})}cancel(){this.connection.cancel(this)}},E=class{constructor(e,t={}){this.url=e;this.options=t}url;options;state="connecting";reason="";caller=null;serverVersion="";bytesReceived=0;changed=new v;socket=null;isWelcome=!1;attempts=0;timer;heartbeat;heardAt=0;nextStream=1;nextCall=1;isPaused=!1;streams=new Map;calls=new Map;attached=new Set;acknowledgements=new Map;get isOpen(){return this.isWelcome}open(){if(this.socket!==null||this.state==="closed")return;clearTimeout(this.timer);let e=this.options.openSocket?.(this.url,C)??new WebSocket(this.url,C);this.socket=e,e.binaryType="arraybuffer",e.onopen=()=>{let{authorization:t}=this.options;e.send(JSON.stringify({type:"hello",...t?{authorization:t}:{}}))},e.onmessage=({data:t})=>{this.heardAt=Date.now();try{typeof t=="string"?this.receiveControl(t):this.receiveData(new Uint8Array(t))}catch(n){this.drop(`the server's message cannot be read: ${String(n)}`)}},e.onclose=({code:t,reason:n})=>{let o=n||`the connection ended (${t})`;t===P?this.lost(o,"ended"):this.lost(o,W.has(t)?"refused":null)},this.heartbeat=setInterval(()=>this.checkHeard(),1e3),this.heardAt=Date.now()}close(){this.enter("closed",""),this.detachSocket(1e3),clearTimeout(this.timer),this.endAll("the connection was closed")}retry(){this.state==="closed"||this.isWelcome||(this.attempts=0,this.detachSocket(1e3),this.open())}attach(e){return this.attached.add(e),this.isWelcome&&e.connected(),()=>this.attached.delete(e)}pause(){if(this.isPaused=!0,!!this.isWelcome){this.sendControl({type:"pause"});for(let e of this.streams.values())e.staysAwake&&e.resume()}}resume(){if(this.isPaused=!1,!this.isWelcome){this.state!=="ended"&&this.retry();return}this.sendControl({type:"resume"});for(let e of this.streams.values())e.isPaused&&e.pause()}call(e,t){if(!this.isWelcome)return Promise.reject(new a("UNAVAILABLE",this.reason||"not connected yet"));let n=this.nextCall++;return new Promise((o,i)=>{this.calls.set(n,{resolve:o,reject:i}),this.sendControl({type:"call",call:n,action:e,...t===void 0?{}:{body:t}})})}openStream(e,{staysAwake:t=!1,...n}){let o=new p(this,this.nextStream++,e);return o.staysAwake=t,this.streams.set(o.number,o),this.sendControl({type:"open",stream:o.number,...n}),this.isPaused&&t&&o.resume(),o}sendControl(e){this.socket?.send(JSON.stringify(e))}sendData(e,t){let n=new b;n.varint(e),n.append(t),this.socket?.send(n.finished())}acknowledge(e){this.streams.has(e.number)&&(this.acknowledgements.size===0&&queueMicrotask(()=>this.flushAcknowledgements()),this.acknowledgements.set(e.number,e.received))}cancel(e){this.streams.delete(e.number)&&(this.acknowledgements.delete(e.number),this.isWelcome&&this.sendControl({type:"cancel",stream:e.number}))}drop(e){this.detachSocket(4e3),this.lost(e,null)}flushAcknowledgements(){let e=Object.fromEntries(this.acknowledgements);this.acknowledgements=new Map,this.isWelcome&&Object.keys(e).length&&this.sendControl({type:"ack",streams:e})}receiveData(e){this.bytesReceived+=e.length;let t=new g(e),n=this.streams.get(t.varint());n!==void 0&&(n.received++,this.guarded(n,()=>n.handler.message(t.rest())))}guarded(e,t){try{t()}catch(n){if(!(n instanceof s))throw n;e.cancel(),e.handler.ended(new a("DATA_LOSS",n.message))}}receiveControl(e){this.bytesReceived+=e.length;let t=S(e);if(t!==null)if(t.type==="welcome")this.welcome(t);else if(t.type==="result")this.settle(t.call,n=>n.resolve(t.body));else if(t.type==="error"&&t.call!==void 0){let n=new a(t.code,t.message);this.settle(t.call,o=>o.reject(n))}else this.tellStream(t)}tellStream(e){let t="stream"in e?this.streams.get(e.stream??0):void 0;if(t!==void 0){if(e.type==="headers")t.handler.headers?.(e.headers);else if(e.type==="view")t.handler.viewBegins?.(e.token);else if(e.type==="end"||e.type==="error"){this.streams.delete(t.number),this.acknowledgements.delete(t.number);let n=e.type==="error";t.handler.ended(n?new a(e.code,e.message):null)}}}settle(e,t){let n=this.calls.get(e);this.calls.delete(e),n!==void 0&&t(n)}welcome({caller:e,version:t}){this.isWelcome=!0,this.attempts=0,this.caller=e,this.serverVersion=t,this.isPaused&&this.sendControl({type:"pause"}),this.enter("live","");for(let n of[...this.attached])n.connected()}lost(e,t){if(this.detachSocket(1e3),this.state==="closed")return;if(this.endAll(e),t!==null){this.enter(t,e);return}this.enter(this.state==="connecting"?"connecting":"reconnecting",e);let o=Math.min(D*2**this.attempts++,j)*(.5+(this.options.random??Math.random)()/2);this.timer=setTimeout(()=>this.open(),o)}detachSocket(e){let{socket:t}=this;this.socket=null,this.isWelcome=!1,clearInterval(this.heartbeat),t!==null&&(t.onopen=t.onmessage=t.onclose=null,t.close(e))}endAll(e){let t=[...this.calls.values()],n=[...this.streams.values()];this.calls.clear(),this.streams.clear(),this.acknowledgements.clear();for(let o of t)o.reject(new a("UNAVAILABLE",e));for(let o of n)o.handler.ended(new a("UNAVAILABLE",e));for(let o of[...this.attached])o.lost(e)}enter(e,t){this.state=e,this.reason=t,this.changed.tell(this)}checkHeard(){let e=Date.now()-this.heardAt;if(e>A+F)this.drop("the server does not answer");else if(e>A&&this.isWelcome&&this.state!=="stale"){this.enter("stale","the server has not been heard of for ten seconds");let t=()=>{this.state==="stale"&&this.enter("live","")};this.call(I).then(t,t)}}};var U=["line","bars","number"],f=["good","wary","bad"],B=2e3,H=8,R=[30,60,300,900,3600,21600],T=8;function _(r,e){return{table:r,kind:e,operations:[],values:[],label:"",along:"",rows:e==="bars"?20:1,isFromEnd:!1,seconds:300,thresholds:[],numbers:"auto"}}function te(r){let e=_(r.table,r.kind),t=Object.entries(r).filter(([n,o])=>n==="table"||n==="kind"||JSON.stringify(o)!==JSON.stringify(e[n]));return Object.fromEntries(t)}var d=r=>typeof r=="string",N=r=>d(r)?r:"";function O(r,[e,t],n){return typeof r=="number"&&r>=e&&r<=t?Math.floor(r):n}function $(r){let{from:e,level:t}=r??{},n=f.find(o=>o===t);return typeof e=="number"&&n!==void 0?[{from:e,level:n}]:[]}function re(r){if(typeof r!="object"||r===null)return null;let e=r,t=U.find(i=>i===e.kind);if(!d(e.table)||e.table===""||t===void 0)return null;let n=_(e.table,t),o=i=>Array.isArray(i)?i:[];return{...n,operations:o(e.operations).filter(i=>Array.isArray(i)&&d(i[0])),values:o(e.values).filter(d).slice(0,H),label:N(e.label),along:N(e.along),rows:O(e.rows,[1,B],n.rows),isFromEnd:e.isFromEnd===!0,seconds:O(e.seconds,[1,R[R.length-1]],n.seconds),thresholds:o(e.thresholds).flatMap($).slice(0,T),numbers:x.find(i=>i===e.numbers)??"auto"}}function ne(r){return r.map(({from:e,level:t})=>`${e} ${t}`).join(", ")}function oe(r){let e=r.split(",").map(n=>n.trim()).filter(Boolean),t=[];for(let n of e.slice(0,T)){let[,o,i]=/^([-+.\deE]+)\s+([a-z]+)$/.exec(n)??[],m=f.find(z=>z===i);if(m===void 0||!Number.isFinite(Number(o)))return{problem:`${n} is no threshold, such as 90 bad (there are ${f.join(", ")})`};t.push({from:Number(o),level:m})}return t.sort((n,o)=>n.from-o.from)}function ie(r,e){let t=null,n=-1/0;for(let o of e)r<o.from||o.from<n||(n=o.from,t=o.level);return t}var le=`:host {
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
.cell.up { background: var(--up); }
.cell.down { background: var(--down); }
.cell.changed { background: var(--changed); }
.cell.up::before, .cell.down::before { position: absolute; left: 3px; font-size: 8px; color: var(--text); }
.cell.up::before { content: "▲" / ""; }
.cell.down::before { content: "▼" / ""; }
.cell.selected { background: var(--accent-soft); }
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
`;function V(r){switch(r.kind){case"live":return"nothing was missed";case"replayed":return`replayed ${r.steps} ${r.steps===1?"step":"steps"}`;case"resnapshot":return`taken anew: ${r.reason}`;default:return""}}function de(r){let{state:e,reason:t}=r;if(e!=="live")return{kind:e,text:e,title:t};if(r.hasFailed)return{kind:"failed",text:"failed",title:"see the message above the table"};if(r.isPaused)return{kind:"paused",text:"paused",title:"press Space to go on"};if(r.isLoading)return{kind:"loading",text:"loading",title:""};let n=V(r.recovery);return n===""||r.recoveredAgo>15e3?{kind:"live",text:"live",title:n}:{kind:"live",text:`live · ${n}`,title:n}}function pe({type:r}){return y(r)||r.kind==="bool"||r.kind==="duration"}function fe(r,{type:e}){if(typeof r=="boolean")return Number(r);if(typeof r!="number"&&typeof r!="bigint")return null;if(e.kind==="decimal")return Number(r)/10**e.scale;if(e.kind==="duration")return Number(r)/Number(1000000000n/c(e.unit));let t=Number(r);return Number.isFinite(t)?t:null}function me(r,e){return r===void 0?"":k(r,e,{...w,numbers:"plain"})}function be({values:r,label:e,rows:t},n,o){return e===""&&t===1?o:r.length>1?`${n} ${o}`:n}function ge(r,{type:e}){return e.kind==="timestamp"?Number(BigInt(r)*c(e.unit)/1000n)/1e3:e.kind==="date"?e.unit==="day"?Number(r)*864e5:Number(r):null}export{E as a,le as b,de as c,U as d,B as e,H as f,R as g,_ as h,te as i,re as j,ne as k,oe as l,ie as m,pe as n,fe as o,me as p,be as q,ge as r};
