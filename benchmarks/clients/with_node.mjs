// OpenAI's own client for Node. It runs in the folder in which `openai` is installed.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(process.cwd() + "/"));
const { OpenAI } = require("openai");
const client = new OpenAI({ baseURL: process.env.COSD_CLIENT_URL, apiKey: "none", maxRetries: 0 });
const asked = { model: "cosd", messages: [{ role: "user", content: "Name three rivers of Europe." }], max_tokens: 16 };
const schema = {
  type: "object", properties: { river: { type: "string", enum: ["Danube", "Rhine"] } }, required: ["river"], additionalProperties: false,
};
const length = ({ river }) => `The ${river} is 1230 km long.`;
const tool = { type: "function", function: { name: "length", description: "Length of a river.", parameters: schema } };
const forced = { tools: [tool], tool_choice: "required", parallel_tool_calls: false, max_tokens: 100 };
const long = [{ role: "user", content: "Write one sentence about the Danube." }];
const named = { type: "json_schema", name: "River", schema, strict: true };
const form = { response_format: { type: "json_schema", json_schema: { name: "River", schema, strict: true } } };
const called = (found) => ({ text: JSON.stringify([found.name, JSON.parse(found.arguments)]) });

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

async function toolsStream() {
  const found = await client.chat.completions.stream({ ...asked, ...forced }).finalChatCompletion();
  return called(found.choices[0].message.tool_calls[0].function);
}

async function parsed() {
  const found = await client.chat.completions.parse({ ...asked, ...form, max_tokens: 100 });
  return { text: JSON.stringify(found.choices[0].message.parsed) };
}

async function toolResult() {
  const { message } = (await client.chat.completions.create({ ...asked, ...forced, messages: long })).choices[0];
  const results = message.tool_calls.map((call) => (
    { role: "tool", tool_call_id: call.id, content: length(JSON.parse(call.function.arguments)) }
  ));
  const more = { messages: [...long, message, ...results], tools: [tool], max_tokens: 100 };
  const [choice] = (await client.chat.completions.create({ ...asked, ...more })).choices;
  return choice.message.tool_calls ? called(choice.message.tool_calls[0].function) : { text: choice.message.content };
}

async function responsesResult() {
  const tools = [{ type: "function", ...tool.function }];
  const more = { model: "cosd", tools, max_output_tokens: 100 };
  const first = await client.responses.create({ ...more, input: long, tool_choice: "required", parallel_tool_calls: false });
  const results = first.output.flatMap((call) => [
    call, { type: "function_call_output", call_id: call.call_id, output: length(JSON.parse(call.arguments)) },
  ]);
  const found = await client.responses.create({ ...more, input: [...long, ...results] });
  return found.output_text ? { text: found.output_text } : called(found.output[0]);
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
  json_schema: () => chat({ ...form, max_tokens: 100 }),
  "json_schema, helper": parsed,
  tools: async () => called((await client.chat.completions.create({ ...asked, ...forced })).choices[0].message.tool_calls[0].function),
  "tools, stream": toolsStream,
  "tool result": toolResult,
  "responses, json_schema": async () => {
    const more = { text: { format: named }, max_output_tokens: 100 };
    return { text: JSON.stringify((await client.responses.parse({ ...short, ...more })).output_parsed) };
  },
  "responses, tool result": responsesResult,
  models: async () => ({ text: (await client.models.list()).data.map((one) => one.id).join(" ") }),
  abort,
};
const found = {};
const only = (process.env.COSD_CLIENT_ONLY ?? "").split(";").filter(Boolean);
for (const [name, ask] of Object.entries(features)) {
  if (only.length && !only.includes(name)) continue;
  if (process.env.COSD_CLIENT_NOTED) await fetch(process.env.COSD_CLIENT_NOTED + encodeURIComponent(name));
  try {
    found[name] = await ask();
  } catch (error) {
    found[name] = { error: String(error) };
  }
}
console.log("\n" + JSON.stringify(found));
