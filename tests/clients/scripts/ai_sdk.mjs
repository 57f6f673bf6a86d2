// `ai` with `@ai-sdk/openai`; ways `responses` and `chat`.
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, Output, generateText, isStepCount, streamText, tool } from "ai";
import {
  LOOP, LongStory, Loop, Offer, Server, TALK, TOOLS, UNKNOWN_MODEL, URL_OF_SERVER, WAY,
  failed, report, streamed,
} from "./common.mjs";

const provider = createOpenAI({ baseURL: URL_OF_SERVER, apiKey: "none" });
const model = (name) => provider[WAY](name);
const asked = (fields) => ({
  model: model("default"), prompt: TALK, temperature: 0, maxRetries: 0, ...fields,
});

function looping(loop) {
  const tools = Object.fromEntries(
    Object.entries(TOOLS).map(([name, { description, parameters }]) => [
      name,
      tool({ description, inputSchema: parameters, execute: (input) => loop.run(name, input) }),
    ]),
  );
  return asked({ prompt: LOOP, tools, stopWhen: isStepCount(5) });
}

async function toolLoop() {
  const loop = new Loop();
  const result = await generateText(looping(loop));
  loop.turns = result.steps.length;
  return loop.seen(result.text);
}

async function streaming() {
  const result = streamText(looping(new Loop()));
  const pieces = [];
  for await (const piece of result.textStream) if (piece) pieces.push(piece);
  return streamed(pieces, await result.text);
}

async function structured() {
  const output = Output.object({ schema: Offer });
  return (await generateText(asked({ output }))).output;
}

async function error() {
  try {
    return await generateText(asked({ model: model(UNKNOWN_MODEL) }));
  } catch (error) {
    return failed(error, {
      status: error.statusCode,
      code: error.data?.error?.code,
      typed: APICallError.isInstance(error),
    });
  }
}

async function cancel() {
  const server = await Server.watched();
  const stop = new AbortController();
  const output = Output.object({ schema: LongStory });
  const result = streamText(asked({ output, abortSignal: stop.signal }));
  for await (const piece of result.textStream) if (piece) stop.abort();
  const cancelled = await server.cancelledWithin();
  return { cancelled, after: (await generateText(asked())).text };
}

await report({ tool_loop: toolLoop, streaming, structured, error, cancel });
