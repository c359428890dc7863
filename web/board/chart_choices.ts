import { type ChartState, emptyChart } from "../chart/chart_state.ts";
import { isDrawable } from "../chart/values.ts";
import type { Field } from "../client/arrow_type.ts";
import type { Operation } from "../client/query.ts";
import { columnName } from "../grid/filters.ts";
import { queryOf } from "../grid/grid_state.ts";
import type { LiveGrid } from "../grid/live_grid.ts";

/** A chart that can be made of a table as it is shown, and how a menu calls it. */
export interface ChartChoice {
  readonly label: string;
  readonly state: ChartState;
}

const LINES = 8;
const ALONG_ROWS = 500;
const AGGREGATES = ["avg", "sum", "max"] as const;

/** The column that names rows best: the key, or the first text. */
function labelOf(fields: readonly Field[], key: readonly string[]): string {
  if (key.length === 1) return key[0]!;
  return fields.find(({ type }) => type.kind === "text")?.name ?? "";
}

/** The charts of the focused cell's column; none where nothing can be drawn. */
export function chartChoices(grid: LiveGrid): ChartChoice[] {
  const { fields, state, focusedCell } = grid;
  const wished = fields.find(({ name }) => name === focusedCell?.column);
  const field = wished !== undefined && isDrawable(wished) ? wished : fields.find(isDrawable);
  if (field === undefined) return [];
  const { name } = field;
  const label = labelOf(fields, grid.keyColumns);
  const { operations } = queryOf(state, fields);
  const values = [name];
  const shown = { operations, values, numbers: state.numbers[name] ?? "auto" } as const;
  const line = emptyChart(state.table, "line");
  const choices: ChartChoice[] = [];
  const row = grid.focusedRow;
  if (row !== null) {
    choices.push(
      { label: `Line of this ${name}`, state: { ...line, ...shown, operations: row } },
      { label: `Number: this ${name}`, state: { ...emptyChart(state.table, "number"), ...shown, operations: row } },
    );
  }
  choices.push(
    { label: `Lines of ${name}, first ${LINES} rows`, state: { ...line, ...shown, label, rows: LINES } },
    { label: `Bars of ${name}`, state: { ...emptyChart(state.table, "bars"), ...shown, label } },
  );
  const moment = fields.find(({ type }) => type.kind === "timestamp");
  if (moment !== undefined) {
    const along = { along: moment.name, rows: ALONG_ROWS, isFromEnd: true };
    choices.push({ label: `${name} along ${moment.name}, last ${ALONG_ROWS} rows`, state: { ...line, ...shown, ...along } });
  }
  const column = columnName(name);
  if (column === null) return choices;
  const unsorted = operations.filter(([operator]) => operator !== "sort");
  return [
    ...choices,
    ...AGGREGATES.map((what) => {
      const made = `${what}_${name}`;
      const aggregate: Operation = ["agg_by", [], { [made]: `${what}(${column})` }];
      return { label: `Line of ${what}(${name})`, state: { ...line, ...shown, operations: [...unsorted, aggregate], values: [made] } };
    }),
  ];
}
