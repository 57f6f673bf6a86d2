// `openai` of npm over HTTP; ways `responses` and `chat`.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import {
  LOOP, LongStory, Loop, Offer, Server, TALK, TOOLS, UNKNOWN_MODEL, URL_OF_SERVER, WAY,
  failed, report, schemaOf, streamed,
} from "./common.mjs";

const client = new OpenAI({ baseURL: URL_OF_SERVER, apiKey: "none", maxRetries: 0 });
const described = Object.entries(TOOLS).map(([name, { description, parameters }]) => ({
  name, description, parameters: schemaOf(parameters), strict: true,
}));

const responses = {
  create: (fields) => client.responses.create({ model: "default", temperature: 0, ...fields }),
  ask: { input: TALK },
  text: (response) => response.output_text,
  delta: (event) => (event.type === "response.output_text.delta" ? event.delta : ""),
  story: () => ({ text: { format: zodTextFormat(LongStory, "story") } }),

  async toolLoop() {
    const loop = new Loop();
    const tools = described.map((tool) => ({ type: "function", ...tool }));
    let fields = { input: LOOP };
    for (;;) {
      const response = await this.create({ tools, ...fields });
      loop.turns += 1;
      const calls = response.output.filter((item) => item.type === "function_call");
      if (calls.length === 0) return loop.seen(response.output_text);
      const input = calls.map((call) => ({
        type: "function_call_output",
        call_id: call.call_id,
        output: loop.run(call.name, call.arguments),
      }));
      fields = { input, previous_response_id: response.id };
    }
  },

  async structured() {
    const format = zodTextFormat(Offer, "offer");
    const fields = { model: "default", input: TALK, text: { format } };
    return (await client.responses.parse(fields)).output_parsed;
  },
};

const chat = {
  create: (fields) =>
    client.chat.completions.create({ model: "default", temperature: 0, ...fields }),
  ask: { messages: [{ role: "user", content: TALK }] },
  text: (completion) => completion.choices[0].message.content,
  delta: (chunk) => chunk.choices[0]?.delta.content ?? "",
  story: () => ({ response_format: zodResponseFormat(LongStory, "story") }),

  async toolLoop() {
    const loop = new Loop();
    const tools = described.map((tool) => ({ type: "function", function: tool }));
    const messages = [{ role: "user", content: LOOP }];
    for (;;) {
      const { message } = (await this.create({ messages, tools })).choices[0];
      loop.turns += 1;
      messages.push(message);
      if (!message.tool_calls) return loop.seen(message.content);
      for (const { id, function: call } of message.tool_calls) {
        const content = loop.run(call.name, call.arguments);
        messages.push({ role: "tool", tool_call_id: id, content });
      }
    }
  },

  async structured() {
    const response_format = zodResponseFormat(Offer, "offer");
    const fields = { model: "default", ...this.ask, response_format };
    return (await client.chat.completions.parse(fields)).choices[0].message.parsed;
  },
};

const way = { responses, chat }[WAY];

async function streaming() {
  const pieces = [];
  for await (const event of await way.create({ ...way.ask, stream: true })) {
    if (way.delta(event)) pieces.push(way.delta(event));
  }
  return streamed(pieces, way.text(await way.create(way.ask)));
}

async function error() {
  try {
    return await way.create({ ...way.ask, model: UNKNOWN_MODEL });
  } catch (error) {
    return failed(error, { status: error.status, code: error.code, param: error.param });
  }
}

async function cancel() {
  const server = await Server.watched();
  const stream = await way.create({ ...way.ask, ...way.story(), stream: true });
  for await (const event of stream) if (way.delta(event)) break;
  const cancelled = await server.cancelledWithin();
  return { cancelled, after: way.text(await way.create(way.ask)) };
}

await report({
  tool_loop: () => way.toolLoop(),
  streaming,
  structured: () => way.structured(),
  error,
  cancel,
});
