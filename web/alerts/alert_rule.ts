/** A condition upon rows of a table whose coming true is told. */
export interface AlertRule {
  readonly table: string;
  readonly where: string;
}

export const ALERTS_MAX = 20;
const TEXT_MAX = 2_000;

/** Rules from a link or a saved board, of which anybody may have written anything. */
export function readAlerts(value: unknown): AlertRule[] {
  return (Array.isArray(value) ? (value as unknown[]) : [])
    .flatMap((item): AlertRule[] => {
      const { table, where } = (item ?? {}) as { table?: unknown; where?: unknown };
      const isFit = (text: unknown): text is string => typeof text === "string" && text !== "" && text.length <= TEXT_MAX;
      return isFit(table) && isFit(where) ? [{ table, where }] : [];
    })
    .slice(0, ALERTS_MAX);
}
