// node node_client.mjs URL: runs the scenario with @stomp/stompjs and ws, and prints what it saw.
import { readFileSync } from "node:fs";
import * as StompJs from "@stomp/stompjs";
import WebSocket from "ws";

globalThis.WebSocket = WebSocket;
const source = readFileSync(new URL("scenario.js", import.meta.url), "utf8");
const scenario = new Function(`${source}; return scenario;`)();
console.log(JSON.stringify(await scenario(StompJs, process.argv[2])));
process.exit(0);
