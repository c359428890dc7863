// A Flight client made of gRPC's library, our .proto and Arrow's library: one command a run, its
// answer is JSON on one line.
//
//   node client.mjs ADDRESS PROTO read PATH
//   node client.mjs ADDRESS PROTO write PATH ROWS
//   node client.mjs ADDRESS PROTO poll COMMAND
//   node client.mjs ADDRESS PROTO list | actions
//   node client.mjs ADDRESS PROTO exchange COMMAND ROWS

import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import { Message, Table, tableFromArrays, tableFromIPC, tableToIPC } from "apache-arrow";

const [address, proto, verb, ...rest] = process.argv.slice(2);
const definition = loader.loadSync(proto, { keepCase: true, longs: Number, defaults: false });
const { FlightService } = grpc.loadPackageDefinition(definition).arrow.flight.protocol;
const client = new FlightService(address, grpc.credentials.createInsecure(), {
  "grpc.max_receive_message_length": 128 * 1024 * 1024,
});

const unary = (method, request) =>
  new Promise((done, failed) =>
    client[method](request, (error, answer) => (error ? failed(error) : done(answer))),
  );

const all = (call) =>
  new Promise((done, failed) => {
    const found = [];
    call.on("data", (message) => found.push(message));
    call.on("end", () => done(found));
    call.on("error", failed);
  });

const byPath = (...path) => ({ type: "PATH", path });
const byCommand = (text) => ({ type: "CMD", cmd: Buffer.from(text) });

/** The table in the messages of one stream: each is a header and a body, as Arrow's IPC has them. */
function tableOf(messages) {
  const parts = [];
  for (const { data_header: header, data_body: body } of messages) {
    if (!header?.length) continue;
    const padding = -header.length & 7;
    const prefix = Buffer.alloc(8);
    prefix.writeUInt32LE(0xffffffff, 0);
    prefix.writeUInt32LE(header.length + padding, 4);
    parts.push(prefix, header, Buffer.alloc(padding), body ?? Buffer.alloc(0));
  }
  return tableFromIPC(Buffer.concat(parts));
}

/** The messages of a table, without the mark at the end of a stream. */
function* messagesOf(table, descriptor) {
  const bytes = Buffer.from(tableToIPC(table, "stream"));
  let at = 0;
  while (at + 8 <= bytes.length && bytes.readUInt32LE(at) === 0xffffffff) {
    const size = bytes.readUInt32LE(at + 4);
    if (size === 0) return;
    const header = bytes.subarray(at + 8, at + 8 + size);
    const bodyEnd = at + 8 + size + Number(Message.decode(header).bodyLength);
    const message = { data_header: header, data_body: bytes.subarray(at + 8 + size, bodyEnd) };
    yield at === 0 ? { ...message, flight_descriptor: descriptor } : message;
    at = bodyEnd;
  }
}

function rowsOf(count) {
  return tableFromArrays({
    x: BigInt64Array.from({ length: count }, (_, row) => BigInt(row)),
    y: Float64Array.from({ length: count }, (_, row) => row / 2),
    name: Array.from({ length: count }, (_, row) => `row ${row}`),
  });
}

async function fetched(info) {
  const parts = [];
  for (const endpoint of info.endpoint ?? [])
    parts.push(tableOf(await all(client.DoGet(endpoint.ticket))));
  return parts.length ? new Table(parts.flatMap((part) => part.batches)) : tableFromArrays({});
}

const summary = (table) => ({
  rows: table.numRows,
  columns: table.schema.fields.map((field) => field.name),
  sum: [...(table.getChild("x") ?? [])].reduce((sum, value) => sum + Number(value), 0),
  last: JSON.stringify(table.numRows ? table.get(table.numRows - 1) : null, (_, value) =>
    typeof value === "bigint" ? Number(value) : value,
  ),
});

async function sent(call, table, descriptor) {
  const answers = all(call);
  for (const message of messagesOf(table, descriptor)) call.write(message);
  call.end();
  return answers;
}

const verbs = {
  async read(name) {
    const info = await unary("GetFlightInfo", byPath(name));
    return { total: info.total_records, endpoints: info.endpoint.length, ...summary(await fetched(info)) };
  },
  async write(name, count) {
    const answers = await sent(client.DoPut(), rowsOf(Number(count)), byPath(name));
    return { answers: answers.map((each) => JSON.parse(each.app_metadata.toString())) };
  },
  async poll(command) {
    let polls = 0;
    let answer = { flight_descriptor: byCommand(command) };
    while (answer.flight_descriptor) {
      answer = await unary("PollFlightInfo", answer.flight_descriptor);
      polls += 1;
    }
    const table = await fetched(answer.info);
    const request = definition["arrow.flight.protocol.CancelFlightInfoRequest"];
    const body = request.serialize({ info: answer.info });
    const [result] = await all(client.DoAction({ type: "CancelFlightInfo", body }));
    const told = definition["arrow.flight.protocol.CancelFlightInfoResult"];
    const { status } = told.deserialize(result.body);
    return { polls, progress: answer.progress, ordered: answer.info.ordered, cancelled: status,
             expires: Number(answer.expiration_time.seconds), ...summary(table) };
  },
  async list() {
    const infos = await all(client.ListFlights({}));
    return { names: infos.map((info) => info.flight_descriptor.path[0]) };
  },
  async actions() {
    return { names: (await all(client.ListActions({}))).map((action) => action.type) };
  },
  async exchange(command, count) {
    const messages = await sent(client.DoExchange(), rowsOf(Number(count)), byCommand(command));
    return summary(tableOf(messages));
  },
};

try {
  console.log(JSON.stringify(await verbs[verb](...rest)));
} catch (error) {
  console.log(JSON.stringify({ code: error.code, details: error.details ?? String(error) }));
} finally {
  client.close();
}
