// What a client that is not ours does with a gate: the same on node and in a browser. Returns what it saw.
async function scenario(StompJs, url) {
  const NEVER = 40000;
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
  const until = async (holds, what) => {
    for (const end = Date.now() + NEVER; !holds(); await sleep(10))
      if (Date.now() > end) throw new Error(`${what}: not within ${NEVER} ms`);
  };
  const seen = { pings: 0, pongs: 0 };

  async function connected(options = {}) {
    const client = new StompJs.Client({
      brokerURL: url,
      reconnectDelay: 0,
      heartbeatIncoming: 1000,
      heartbeatOutgoing: 1000,
      debug: (line) => {
        if (line.includes(">>> PING")) seen.pings += 1;
        if (line.includes("<<< PONG")) seen.pongs += 1;
      },
      ...options,
    });
    const answer = new Promise((done, failed) => {
      client.onConnect = done;
      client.onWebSocketError = () => failed(new Error("WebSocket error"));
    });
    client.activate();
    return [client, await answer];
  }

  function messages(client, headers = {}) {
    const found = [];
    client.subscribe(
      "/topic/gates/a",
      (message) => found.push({ headers: message.headers, body: JSON.parse(message.body) }),
      headers,
    );
    return found;
  }

  async function submit(client, event) {
    const receipt = `receipt of ${event}`;
    const answer = new Promise((done) => client.watchForReceipt(receipt, (frame) => done(frame.headers)));
    client.publish({ destination: "/app/gates/a", body: JSON.stringify({ event, value: "ü" }), headers: { receipt } });
    return answer;
  }

  // connect, subscribe, receipt
  const [first, answer] = await connected();
  seen.connected = answer.headers;
  seen.protocol = first.webSocket.protocol;
  const before = messages(first);
  await until(() => before.length === 1, "key frame");
  seen.accepted = await submit(first, "pizza");
  seen.repeat = await submit(first, "pizza");
  await until(() => before.length === 3, "changes");
  seen.before = before;

  // heart-beats: it is not taken for lost, and does not take the server for lost
  await sleep(2500);
  seen.stillThere = first.connected;
  await first.deactivate();

  // resume
  const [other] = await connected();
  await submit(other, "taco");
  await other.deactivate();
  const [second] = await connected();
  const after = messages(second, { since: before[2].headers["message-id"] });
  await until(() => after.length === 2, "missed changes");
  seen.after = after;

  // error
  let error, closed;
  second.onStompError = (frame) => (error = { headers: frame.headers, body: frame.body });
  second.onWebSocketClose = (event) => (closed = { code: event.code, reason: event.reason });
  second.publish({ destination: "/app/gates/b", body: "{}" });
  await until(() => error && closed, "error");
  await second.deactivate();
  return { ...seen, error, closed };
}
