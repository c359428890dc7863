import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";
import type { ArrowType, Field } from "../client/arrow_type.ts";
import type { Cell } from "../client/cells.ts";
import { ParquetWriter } from "../grid/parquet.ts";

const field = (name: string, type: ArrowType): Field => ({
  name, type, isNullable: true, children: [], dictionary: null, metadata: new Map(),
});

const READ = `
import sys, pyarrow.parquet as p
for row in p.read_table(sys.argv[1]).to_pylist(): print({k: str(v) for k, v in row.items()})
`;

test("pyarrow reads what was written", async (context) => {
  const python = process.env.PYTHON ?? "python3";
  try {
    execFileSync(python, ["-c", "import pyarrow.parquet"], { stdio: "ignore" });
  } catch {
    context.skip("needs pyarrow; set PYTHON");
    return;
  }
  const columns: [ArrowType, Cell[]][] = [
    [{ kind: "bool" }, [true, null, false]],
    [{ kind: "int", bits: 8, isSigned: true }, [-128, null, 127]],
    [{ kind: "int", bits: 32, isSigned: false }, [4294967295, null, 0]],
    [{ kind: "int", bits: 64, isSigned: true }, [9223372036854775807n, null, -9223372036854775808n]],
    [{ kind: "int", bits: 64, isSigned: false }, [18446744073709551615n, null, 0n]],
    [{ kind: "float", bits: 32 }, [1.5, null, -0.25]],
    [{ kind: "float", bits: 64 }, [1e300, null, 0.1]],
    [{ kind: "text", isLarge: false }, ["é🦀", null, ""]],
    [{ kind: "decimal", bits: 128, precision: 20, scale: 3 }, [-1234567n, null, 128n]],
    [{ kind: "date", unit: "day" }, [20000, null, -1]],
    [{ kind: "timestamp", unit: "us", zone: "UTC" }, [1700000000123456n, null, 0n]],
    [{ kind: "time", unit: "ms", bits: 32 }, [1000, null, 86399999]],
  ];
  const writer = new ParquetWriter(columns.map(([type], i) => field(`c${i}`, type)));
  writer.add(columns.map(([, cells]) => cells));
  writer.add(columns.map(([, cells]) => cells.slice(0, 1)));
  const path = join(mkdtempSync(join(tmpdir(), "parquet-")), "t.parquet");
  writeFileSync(path, new Uint8Array(await writer.finish().arrayBuffer()));
  const lines = execFileSync(python, ["-c", READ, path], { encoding: "utf8" }).trim().split("\n");
  assert.equal(lines.length, 4);
  assert.equal(lines[0], "{'c0': 'True', 'c1': '-128', 'c2': '4294967295', 'c3': '9223372036854775807', 'c4': '18446744073709551615', 'c5': '1.5', 'c6': '1e+300', 'c7': 'é🦀', 'c8': '-1234.567', 'c9': '2024-10-04', 'c10': '2023-11-14 22:13:20.123456+00:00', 'c11': '00:00:01'}");
  assert.ok(lines[1]!.split("None").length === 13);
  assert.match(lines[2]!, /'c1': '127'.*'c3': '-9223372036854775808'.*'c7': '', 'c8': '0.128', 'c9': '1969-12-31'/);
  assert.equal(lines[3], lines[0]);
});
