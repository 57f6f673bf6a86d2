// `@openai/agents`; ways `websocket`, `http` and `chat`.
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from "@openai/agents";
import {
  LOOP, LongStory, Loop, Offer, Server, TALK, TOOLS, UNKNOWN_MODEL, URL_OF_SERVER, WAY,
  failed, report, streamed,
} from "./common.mjs";

setTracingDisabled(true);
const modelProvider = new OpenAIProvider({
  baseURL: URL_OF_SERVER,
  apiKey: "none",
  useResponses: WAY !== "chat",
  useResponsesWebSocket: WAY === "websocket",
});
const runner = new Runner({ modelProvider });
const agent = (fields) =>
  new Agent({ name: "shop", model: "default", modelSettings: { temperature: 0 }, ...fields });

function seller(loop) {
  const tools = Object.entries(TOOLS).map(([name, { description, parameters }]) =>
    tool({ name, description, parameters, execute: (input) => loop.run(name, input) }),
  );
  return agent({ tools });
}

async function toolLoop() {
  const loop = new Loop();
  const result = await runner.run(seller(loop), LOOP);
  loop.turns = result.rawResponses.length;
  return loop.seen(result.finalOutput);
}

async function streaming() {
  const result = await runner.run(seller(new Loop()), LOOP, { stream: true });
  const pieces = [];
  for await (const event of result) {
    if (event.type === "raw_model_stream_event" && event.data.type === "output_text_delta") {
      pieces.push(event.data.delta);
    }
  }
  return streamed(pieces, result.finalOutput);
}

async function structured() {
  return (await runner.run(agent({ outputType: Offer }), TALK)).finalOutput;
}

async function error() {
  try {
    return await runner.run(agent({ model: UNKNOWN_MODEL }), TALK);
  } catch (error) {
    return failed(error, { status: error.status, code: error.code, text: error.message });
  }
}

async function cancel() {
  const server = await Server.watched();
  const stop = new AbortController();
  const options = { stream: true, signal: stop.signal };
  const result = await runner.run(agent({ outputType: LongStory }), TALK, options);
  for await (const event of result) {
    if (event.type === "raw_model_stream_event" && event.data.type === "output_text_delta") {
      stop.abort();
    }
  }
  const cancelled = await server.cancelledWithin();
  return { cancelled, after: (await runner.run(agent(), TALK)).finalOutput };
}

await report({ tool_loop: toolLoop, streaming, structured, error, cancel });
await modelProvider.close?.();
