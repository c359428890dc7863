import type { Field } from "../client/arrow_type.ts";
import type { Cell } from "../client/cells.ts";
import { exactText } from "../grid/formats.ts";

const WRITABLE: ReadonlySet<string> = new Set([
  "text", "bool", "int", "float", "decimal", "timestamp", "date", "time", "duration", "binary", "fixed-binary",
]);

/** Whether cells of the column can be written as text. */
export function isWritten({ type }: Field): boolean {
  return WRITABLE.has(type.kind);
}

/** A cell as it is sent to the server, and as an input begins with it; null is null. */
export function inputText(cell: Cell, field: Field): string | null {
  return cell === null ? null : exactText(cell, field);
}

const WHOLE = /^[-+]?\d+$/;
const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;
const SPECIAL = /^([-+−]?(inf(inity)?|∞)|nan)$/i;

/** What is wrong with a text as a cell of the column; null when the server may be asked. */
export function inputProblem({ type }: Field, text: string): string | null {
  const plain = text.trim();
  if (type.kind === "int") {
    const bits = BigInt(type.bits);
    const least = type.isSigned ? -(1n << (bits - 1n)) : 0n;
    const most = (1n << (type.isSigned ? bits - 1n : bits)) - 1n;
    if (!WHOLE.test(plain)) return "a whole number, please";
    const value = BigInt(plain.replace(/^\+/, ""));
    return value < least || value > most ? `from ${least} to ${most}` : null;
  }
  if (type.kind === "float") return NUMBER.test(plain) || SPECIAL.test(plain) ? null : "a number, please";
  if (type.kind === "decimal") return NUMBER.test(plain) ? null : "a number, please";
  return null;
}
