// `openai` of npm with `ws`: the Responses API over its WebSocket transport.
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";
import { zodTextFormat } from "openai/helpers/zod";
import {
  LOOP, LongStory, Loop, Offer, Server, TALK, TOOLS, UNKNOWN_MODEL, URL_OF_SERVER,
  failed, report, schemaOf, streamed,
} from "./common.mjs";

const TERMINAL = ["response.completed", "response.incomplete", "response.failed"];
const client = new OpenAI({ baseURL: URL_OF_SERVER, apiKey: "none" });
const tools = Object.entries(TOOLS).map(([name, { description, parameters }]) => ({
  type: "function", name, description, parameters: schemaOf(parameters), strict: true,
}));

// One turn on a connection; resolves with its events, at the latest that which `last` names.
function turn(socket, fields, last = (event) => TERMINAL.includes(event.type)) {
  return new Promise((resolve, reject) => {
    const events = [];
    const onEvent = (event) => {
      events.push(event);
      if (last(event)) settle(resolve, events);
    };
    const onError = (error) => settle(reject, error);
    const settle = (end, value) => {
      socket.off("event", onEvent);
      socket.off("error", onError);
      end(value);
    };
    socket.on("event", onEvent);
    socket.on("error", onError);
    socket.send({ type: "response.create", model: "default", temperature: 0, ...fields });
  });
}

const textOf = (response) =>
  response.output.flatMap((item) => item.content ?? []).map((part) => part.text).join("");
const socket = new ResponsesWS(client);

async function toolLoop() {
  const loop = new Loop();
  let fields = { input: LOOP };
  for (;;) {
    const { response } = (await turn(socket, { tools, ...fields })).at(-1);
    loop.turns += 1;
    const calls = response.output.filter((item) => item.type === "function_call");
    if (calls.length === 0) return loop.seen(textOf(response));
    const input = calls.map((call) => ({
      type: "function_call_output",
      call_id: call.call_id,
      output: loop.run(call.name, call.arguments),
    }));
    fields = { input, previous_response_id: response.id };
  }
}

async function streaming() {
  const events = await turn(socket, { input: TALK });
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  return streamed(deltas.map((event) => event.delta), textOf(events.at(-1).response));
}

async function structured() {
  const format = zodTextFormat(Offer, "offer");
  const events = await turn(socket, { input: TALK, text: { format } });
  return Offer.parse(JSON.parse(textOf(events.at(-1).response)));
}

async function error() {
  try {
    return await turn(socket, { input: TALK, model: UNKNOWN_MODEL });
  } catch (error) {
    const { code, param } = error.error.error;
    return failed(error, { status: error.error.status, code, param });
  }
}

// This transport has no way to stop a turn but to close its connection.
async function cancel() {
  const server = await Server.watched();
  const left = new ResponsesWS(client);
  const text = { format: zodTextFormat(LongStory, "story") };
  await turn(left, { input: TALK, text }, (event) => event.type.endsWith("_text.delta"));
  left.close();
  const cancelled = await server.cancelledWithin();
  return { cancelled, after: textOf((await turn(socket, { input: TALK })).at(-1).response) };
}

await report({ tool_loop: toolLoop, streaming, structured, error, cancel });
socket.close();
