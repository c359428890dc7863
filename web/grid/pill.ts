import type { ConnectionState } from "../client/connection.ts";
import type { Recovery } from "../client/subscription.ts";

export interface PillText {
  /** Also the class of the pill. */
  readonly kind: ConnectionState | "loading" | "paused" | "failed";
  readonly text: string;
  readonly title: string;
}

const RECOVERY_SHOWN_MS = 15_000;

export interface PillInput {
  readonly state: ConnectionState;
  readonly reason: string;
  readonly recovery: Recovery;
  /** Milliseconds since the subscription came back. */
  readonly recoveredAgo: number;
  readonly isPaused: boolean;
  readonly isLoading: boolean;
  readonly hasFailed: boolean;
}

function recoveryText(recovery: Recovery): string {
  switch (recovery.kind) {
    case "live":
      return "nothing was missed";
    case "replayed":
      return `replayed ${recovery.steps} ${recovery.steps === 1 ? "step" : "steps"}`;
    case "resnapshot":
      return `taken anew: ${recovery.reason}`;
    default:
      return "";
  }
}

/** What the pill says of the connection, and for a while how it came back. */
export function pillText(input: PillInput): PillText {
  const { state, reason } = input;
  if (state !== "live") return { kind: state, text: state, title: reason };
  if (input.hasFailed) return { kind: "failed", text: "failed", title: "see the message above the table" };
  if (input.isPaused) return { kind: "paused", text: "paused", title: "press Space to go on" };
  if (input.isLoading) return { kind: "loading", text: "loading", title: "" };
  const how = recoveryText(input.recovery);
  if (how === "" || input.recoveredAgo > RECOVERY_SHOWN_MS) return { kind: "live", text: "live", title: how };
  return { kind: "live", text: `live · ${how}`, title: how };
}
