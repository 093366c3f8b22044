// OpenAI's own client for Node. It runs in the folder in which `openai` is installed.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(process.cwd() + "/"));
const { OpenAI } = require("openai");
const client = new OpenAI({ baseURL: process.env.COSD_CLIENT_URL, apiKey: "none", maxRetries: 0 });
const asked = { model: "cosd", messages: [{ role: "user", content: "Name three rivers of Europe." }], max_tokens: 16 };
const tool = { type: "function", function: { name: "river", parameters: { type: "object", properties: {} } } };
const schema = { type: "object", properties: { river: { type: "string" } }, required: ["river"] };

async function chat(more = {}) {
  const found = await client.chat.completions.create({ ...asked, ...more });
  const [choice] = found.choices;
  const usage = [found.usage.prompt_tokens, found.usage.completion_tokens];
  return { text: choice.message.content, usage, logprobs: choice.logprobs?.content?.length ?? null };
}

async function stream() {
  let text = "", usage = null;
  const more = { stream: true, stream_options: { include_usage: true } };
  for await (const one of await client.chat.completions.create({ ...asked, ...more })) {
    text += one.choices.map((choice) => choice.delta.content ?? "").join("");
    if (one.usage) usage = [one.usage.prompt_tokens, one.usage.completion_tokens];
  }
  return { text, usage };
}

async function completions(more = {}) {
  const prompt = asked.messages[0].content;
  const found = await client.completions.create({ model: "cosd", prompt, max_tokens: 16, ...more });
  const usage = [found.usage.prompt_tokens, found.usage.completion_tokens];
  return { text: found.choices[0].text, usage, logprobs: found.choices[0].logprobs?.tokens?.length ?? null };
}

const short = { model: "cosd", input: "Name one river of Europe." };

async function responses() {
  const found = await client.responses.create(short);
  return { text: found.output_text, usage: [found.usage.input_tokens, found.usage.output_tokens] };
}

async function responsesStream() {
  const events = client.responses.stream(short);
  let text = "";
  for await (const one of events) if (one.type === "response.output_text.delta") text += one.delta;
  const { usage } = await events.finalResponse();
  return { text, usage: [usage.input_tokens, usage.output_tokens] };
}

async function ended() {
  const text = await (await fetch(process.env.COSD_CLIENT_URL.replace(/\/v1$/, "/metrics"))).text();
  const found = text.matchAll(/^cosd_requests_total\{.*outcome="(\w+)".*\} (.+)$/gm);
  const counts = {};
  for (const [, outcome, count] of found) counts[outcome] = (counts[outcome] ?? 0) + Number(count);
  return counts;
}

async function abort() {
  const before = await ended();
  const messages = [{ role: "user", content: "Write a long story about a river." }];
  const events = await client.chat.completions.create({ ...asked, messages, max_tokens: 400, stream: true });
  for await (const _ of events) break; // which aborts the request
  for (let at = 0; at < 600; at++) {
    const found = Object.entries(await ended()).find(([outcome, count]) => count > (before[outcome] ?? 0));
    if (found) return { outcome: found[0], collected: false };
    await new Promise((wake) => setTimeout(wake, 100));
  }
  return { outcome: null, collected: false };
}

const features = {
  chat,
  "chat, defaults": chat,
  stream,
  responses,
  "responses, stream": responsesStream,
  completions,
  "completions, defaults": completions,
  "completions, logprobs": () => completions({ logprobs: 1 }),
  logprobs: () => chat({ logprobs: true }),
  "stop, seed, length": () => chat({ stop: ["\n\n\n"], seed: 1, max_tokens: undefined, max_completion_tokens: 16 }),
  temperature: () => chat({ temperature: 0.7 }),
  tools: () => chat({ tools: [tool] }),
  json_schema: () => chat({ response_format: { type: "json_schema", json_schema: { name: "river", schema } } }),
  models: async () => ({ text: (await client.models.list()).data.map((one) => one.id).join(" ") }),
  abort,
};
const found = {};
const only = (process.env.COSD_CLIENT_ONLY ?? "").split(";").filter(Boolean);
for (const [name, ask] of Object.entries(features)) {
  if (only.length && !only.includes(name)) continue;
  try {
    found[name] = await ask();
  } catch (error) {
    found[name] = { error: String(error) };
  }
}
console.log("\n" + JSON.stringify(found));
