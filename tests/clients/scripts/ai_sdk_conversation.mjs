// `ai` over three turns of a user, with the messages that it returned itself; ways `responses`,
// `unstored` (the same with `store: false`), `chat`, and `messages` with Anthropic's provider.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, tool } from "ai";
import { Loop, QUESTIONS, TOOLS, URL_OF_SERVER, WAY, report } from "./common.mjs";

const server = { baseURL: URL_OF_SERVER, apiKey: "none" };
const MODELS = {
  responses: () => createOpenAI(server).responses("default"),
  unstored: () => createOpenAI(server).responses("default"),
  chat: () => createOpenAI(server).chat("default"),
  messages: () => createAnthropic(server)("default"),
};

async function conversation() {
  const loop = new Loop();
  const tools = Object.fromEntries(
    Object.entries(TOOLS).map(([name, { description, parameters }]) => [
      name,
      tool({ description, inputSchema: parameters, execute: (input) => loop.run(name, input) }),
    ]),
  );
  const seen = [];
  const messages = [];
  for (const question of QUESTIONS) {
    messages.push({ role: "user", content: question });
    const result = await generateText({
      model: MODELS[WAY](),
      tools,
      stopWhen: isStepCount(5),
      temperature: 0,
      maxRetries: 0,
      providerOptions: WAY === "unstored" ? { openai: { store: false } } : {},
      messages,
    });
    messages.push(...result.responseMessages);
    seen.push({ calls: loop.calls.splice(0), answer: result.text });
  }
  return seen;
}

await report({ conversation });
