// What the scripts for Node share: tools, questions, and how a cancelled turn shows on the
// server. The same as common.py, which says more.
import { z } from "zod";

export const LOOP = "Multiply the price of desk by 3.";
export const TALK = "What is the price of desk?";
export const QUESTIONS = [LOOP, "What is the price of lamp?", "Multiply the price of chair by 2."];
export const UNKNOWN_MODEL = "other";
export const PRODUCTS = ["lamp", "desk", "chair"];
export const [URL_OF_SERVER, WAY] = process.argv.slice(2);

const PRICES = { lamp: 24, desk: 180, chair: 75 };
const number = z.number().int().min(0).max(9999);

export const TOOLS = {
  get_price: {
    description: "Get the price of a product.",
    parameters: z.object({ product: z.enum(PRODUCTS) }),
  },
  multiply: {
    description: "Multiply two numbers.",
    parameters: z.object({ a: number, b: number }),
  },
};
export const Offer = z.object({
  product: z.enum(PRODUCTS),
  pieces: z.union([z.literal(1), z.literal(2), z.literal(3)]),
  express: z.boolean(),
});
const chapter = z.string().min(3000).max(3100);
export const LongStory = z.object({ beginning: chapter, middle: chapter, end: chapter });

export function schemaOf(type) {
  return z.toJSONSchema(type);
}

export class Loop {
  calls = [];
  turns = 0;

  run(name, given) {
    const read = typeof given === "string" ? JSON.parse(given) : given;
    this.calls.push([name, read]);
    const result =
      name === "get_price" ? { price: PRICES[read.product] } : { result: read.a * read.b };
    return JSON.stringify(result);
  }

  seen(answer) {
    return { turns: this.turns, calls: this.calls, answer };
  }
}

export function streamed(pieces, final) {
  return { pieces: pieces.length, joined: pieces.join(""), final };
}

export function failed(error, fields) {
  return { class: error.constructor.name, ...fields };
}

export class Server {
  static async watched() {
    const server = new Server();
    server.before = await server.cancelledTurns();
    return server;
  }

  async cancelledTurns() {
    const page = await fetch(URL_OF_SERVER.replace(/\/v1$/, "/metrics"));
    const counts = (await page.text()).matchAll(
      /^keepwarm_turns_total\{.*"cancelled".*\} (\S+)$/gm,
    );
    return [...counts].reduce((sum, [, count]) => sum + Number(count), 0);
  }

  async cancelledWithin(seconds = 10) {
    const until = Date.now() + 1000 * seconds;
    while ((await this.cancelledTurns()) === this.before && Date.now() < until) {
      await new Promise((next) => setTimeout(next, 20));
    }
    return (await this.cancelledTurns()) - this.before;
  }
}

export async function report(capabilities) {
  const seen = {};
  for (const [name, look] of Object.entries(capabilities)) seen[name] = await look();
  console.log(JSON.stringify(seen));
}
