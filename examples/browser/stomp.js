// A subscriber of a gate in 20 lines: no package, only the browser's WebSocket. It resumes after a lost connection.
// `take(message)` gets {kind, clock, body}; if it returns false, something is missing, and a key frame comes next.
export function subscribe(url, gate, take, tell = () => {}) {
  let socket, since, retry = 500, timers = [];
  const name = encodeURIComponent(gate);
  const send = (command, headers, body = "") =>
    socket.send(`${command}\n${Object.entries(headers).map((pair) => pair.join(":")).join("\n")}\n\n${body}\0`);
  const open = () => {
    socket = new WebSocket(url, ["v12.stomp"]);
    socket.onopen = () => send("CONNECT", {"accept-version": "1.2", host: "-", "heart-beat": "10000,10000"});
    socket.onclose = () => (timers.forEach(clearTimeout), tell("lost"), setTimeout(open, (retry = Math.min(2 * retry, 10000))));
    socket.onmessage = ({data}) => {
      clearTimeout(timers[1]), (timers[1] = setTimeout(() => socket.close(), 25000)); // a silent server is a lost one
      const [head, body] = data.replace(/\0\n*$/, "").split(/\n\n(.*)/s); // one frame for each message; "\n" is a heart-beat
      const [command, ...lines] = head.split("\n");
      const headers = Object.fromEntries(lines.map((line) => line.split(/:(.*)/s)));
      if (command === "ERROR") tell("error", headers.message.replaceAll("\\c", ":"));
      if (command === "RECEIPT") tell("receipt", headers);
      if (command === "CONNECTED") {
        timers[0] = setInterval(() => socket.send("\n"), 8000), tell("connected");
        send("SUBSCRIBE", {id: "0", destination: `/topic/gates/${name}`, ...(since && {since})});
      } else if (command === "MESSAGE") {
        const fits = take({kind: headers.kind, clock: +headers.clock, body: JSON.parse(body)}) !== false;
        (since = fits && headers["message-id"]), (retry = 500), fits || socket.close();
      }
    };
  };
  open();
  return {submit: (event, receipt) => send("SEND", {destination: `/app/gates/${name}`, receipt}, JSON.stringify(event))};
}
