/** `<live-chart>`: lines, bars and large numbers of a table, as they change. */
export { type ChartState, emptyChart } from "./chart_state.ts";
export { defineLiveChart, LiveChart } from "./live_chart.ts";
import { defineLiveChart } from "./live_chart.ts";

defineLiveChart();
