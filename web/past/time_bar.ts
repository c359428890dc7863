import { listVersions, type VersionMark } from "../client/journal.ts";
import { button, element, setAttribute } from "../grid/dom.ts";
import type { GridCore } from "../grid/grid_core.ts";
import { momentText, pauseOf, placeOf, SPEEDS } from "./player.ts";

export interface TimeBarActions {
  show(at: string): void;
  /** Back to the table as it changes. */
  leave(): void;
}

function tool(label: string, name: string, act: () => void): HTMLButtonElement {
  const made = button(label, name, act);
  made.className = "tool";
  made.setAttribute("aria-label", name);
  return made;
}

/** A slider through the versions of a table, which plays them too. One version is asked for at a time. */
export class TimeBar {
  readonly element: HTMLElement;
  private readonly slider = element("input", { type: "range", class: "timeslider", min: "0", max: "0", step: "1", "aria-label": "Version", disabled: "" });
  private readonly moment = element("output", { class: "moment", role: "status" });
  private readonly speed = element("select", { class: "speed", "aria-label": "Speed" }, SPEEDS.map((speed) => element("option", { value: String(speed) }, [`${speed}×`])));
  private readonly play = tool("▶", "Play", () => this.setPlaying(!this.isPlaying));
  private readonly table: string;
  private epoch = "";
  private marks: readonly VersionMark[] = [];
  private place = 0;
  private asked = "";
  private isPlaying = false;
  private isClosed = false;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly core: GridCore,
    private readonly actions: TimeBarActions,
  ) {
    this.table = core.state.table;
    this.speed.value = "1";
    const live = button("Live", "Back to the table as it changes", () => actions.leave());
    live.className = "tool";
    this.slider.addEventListener("input", () => {
      this.setPlaying(false);
      this.goTo(Number(this.slider.value));
    });
    this.element = element("div", { class: "timebar", role: "group", "aria-label": "History" }, [
      tool("❙◀", "One version back", () => this.step(-1)),
      this.play,
      tool("▶❙", "One version on", () => this.step(1)),
      this.slider,
      this.speed,
      this.moment,
      live,
    ]);
  }

  isOf(core: GridCore): boolean {
    return core === this.core && core.state.table === this.table;
  }

  async load(): Promise<void> {
    const [epoch, version] = this.core.state.at.split(":");
    try {
      const { epoch: found, marks } = await listVersions(this.core.connection, this.table);
      if (this.isClosed) return;
      this.epoch = found;
      this.marks = marks;
      if (marks.length === 0) {
        this.say("There are no versions yet.");
        return;
      }
      this.slider.disabled = false;
      this.slider.max = String(marks.length - 1);
      if (epoch !== "" && epoch !== found) {
        this.slider.value = this.slider.max;
        this.asked = this.core.state.at;
        this.place = marks.length;
        this.say("The table's history is another one now.");
      } else this.goTo(version === undefined ? marks.length - 1 : placeOf(marks, Number(version)));
    } catch (error) {
      const { message } = error as Error;
      this.say(message.startsWith("no-journal") ? "This table keeps no history (docs/journal.md)." : message);
    }
  }

  close(): void {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.element.remove();
  }

  /** What was asked for may be there: then the next one is asked for. */
  paint(core: GridCore): void {
    if (this.isWaiting(core)) return;
    const wanted = this.wanted;
    if (wanted !== "" && wanted !== this.asked) this.ask(wanted);
  }

  private isWaiting(core: GridCore): boolean {
    return this.asked !== "" && core.error === null && !core.rows.isCurrent;
  }

  private get wanted(): string {
    const mark = this.marks[this.place];
    return mark === undefined ? "" : `${this.epoch}:${mark.version}`;
  }

  private goTo(place: number): void {
    this.place = Math.max(0, Math.min(place, this.marks.length - 1));
    const mark = this.marks[this.place];
    if (mark === undefined) return;
    this.slider.value = String(this.place);
    const text = `${momentText(mark.ms)} · version ${mark.version}`;
    this.say(text);
    setAttribute(this.slider, "aria-valuetext", text);
    if (!this.isWaiting(this.core)) this.ask(this.wanted);
  }

  private ask(at: string): void {
    if (this.isClosed || at === this.asked) return;
    this.asked = at;
    this.actions.show(at);
  }

  private step(by: number): void {
    this.setPlaying(false);
    this.goTo(this.place + by);
  }

  private setPlaying(isPlaying: boolean): void {
    this.isPlaying = isPlaying && this.marks.length > 0;
    clearTimeout(this.timer);
    this.play.textContent = this.isPlaying ? "❚❚" : "▶";
    setAttribute(this.play, "aria-label", this.isPlaying ? "Pause" : "Play");
    if (!this.isPlaying) return;
    if (this.place >= this.marks.length - 1) this.goTo(0);
    this.later();
  }

  private later(): void {
    this.timer = setTimeout(() => this.next(), pauseOf(this.marks, this.place, Number(this.speed.value)));
  }

  private next(): void {
    // A version that is not there yet is waited for.
    if (!this.isWaiting(this.core)) this.goTo(this.place + 1);
    if (this.place >= this.marks.length - 1) this.setPlaying(false);
    else this.later();
  }

  private say(text: string): void {
    if (this.moment.textContent !== text) this.moment.textContent = text;
  }
}
