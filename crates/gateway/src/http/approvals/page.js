"use strict";
// The page on which people approve calls: a client of `nats-rpc-v1` (docs/spec/client.md, whose sections are cited) that signs with the
// approver's own key. It believes nothing that a pinned service key has not signed, and what it signs is the digest of what it shows.

const utf8 = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** What went wrong, in words for the approver. */
class Failure extends Error {}

/** What the service has signed in place of a result. */
class ServiceError extends Failure {}

function check(holds, why) {
  if (!holds) throw new Failure(why);
}

// Texts: §4.

function b64(bytes) {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function unb64(text) {
  check(/^[A-Za-z0-9_-]+$/.test(text) && text.length % 4 !== 1, "not base64url");
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (char) => char.charCodeAt(0));
  check(b64(bytes) === text, "not canonical base64url");
  return bytes;
}

async function digest(data) {
  const bytes = typeof data === "string" ? utf8.encode(data) : data;
  return b64(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));
}

/** The elements of an array or the members of an object, each as it is written. */
function pieces(json) {
  // The rest relies on the grammar.
  JSON.parse(json);
  const found = [];
  let [depth, start, inString] = [0, 0, false];
  for (let at = 0; at < json.length; at += 1) {
    const char = json[at];
    if (inString) {
      if (char === "\\") at += 1;
      else inString = char !== '"';
    } else if (char === '"') {
      inString = true;
    } else if (char === "{" || char === "[") {
      depth += 1;
      if (depth === 1) start = at + 1;
    } else if (char === "}" || char === "]") {
      depth -= 1;
      if (depth === 0) found.push(json.slice(start, at).trim());
    } else if (char === "," && depth === 1) {
      found.push(json.slice(start, at).trim());
      start = at + 1;
    }
  }
  return found.length === 1 && found[0] === "" ? [] : found;
}

/** The members of an object: each name, and its value as it is written. */
function members(json) {
  check(json.trimStart().startsWith("{"), "not a JSON object");
  return pieces(json).map((piece) => {
    let end = 1;
    while (piece[end] !== '"') end += piece[end] === "\\" ? 2 : 1;
    const rest = piece.slice(end + 1).trimStart();
    return [JSON.parse(piece.slice(0, end + 1)), rest.slice(1).trimStart()];
  });
}

const isInteger = (written) => /^(0|[1-9][0-9]{0,15})$/.test(written) && Number(written) <= Number.MAX_SAFE_INTEGER;

/** A JOSE part with exactly these members: strings, and integers where `integers` says so. */
function part(text, names, integers = []) {
  const found = members(strict.decode(unb64(text)));
  const has = new Set(found.map(([name]) => name));
  check(found.length === names.length && names.every((name) => has.has(name)), "other members than those of the protocol");
  const value = ([name, written]) => {
    check(integers.includes(name) ? isInteger(written) : written.startsWith('"'), `\`${name}\` is of another kind`);
    return [name, JSON.parse(written)];
  };
  return Object.fromEntries(found.map(value));
}

// Keys: §5.3, §5.4.

const PRIME = 2n ** 255n - 19n;
const ORDER_8 = BigInt("0x" + "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05".match(/../g).reverse().join(""));

async function publicKey(x) {
  const bytes = unb64(x);
  check(bytes.length === 32, "not an Ed25519 key");
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).reverse().join("");
  const y = BigInt.asUintN(255, BigInt(`0x${hex}`));
  check(y < PRIME && ![0n, 1n, PRIME - 1n, ORDER_8, PRIME - ORDER_8].includes(y), "a key for which anybody could sign");
  return crypto.subtle.importKey("raw", bytes, "Ed25519", true, ["verify"]);
}

/** RFC 7638. */
const thumbprint = (x) => digest(`{"crv":"Ed25519","kty":"OKP","x":"${x}"}`);

/** A signed text with this header and these claims. */
async function jws(privateKey, header, claims) {
  const text = [header, claims].map((value) => b64(utf8.encode(JSON.stringify(value)))).join(".");
  return `${text}.${b64(new Uint8Array(await crypto.subtle.sign("Ed25519", privateKey, utf8.encode(text))))}`;
}

const random = (length) => b64(crypto.getRandomValues(new Uint8Array(length)));

/** The request with which an operator enrols this key: `sealwire keys enrol`. */
function enrolmentRequest({ environment, agent, kid, x, privateKey }, nowMs) {
  const header = { alg: "EdDSA", kid, typ: "nats-rpc-v1-enrol+jwt" };
  return jws(privateKey, header, { environment, agent, x, iat: Math.floor(nowMs / 1000) });
}

const isName = (text) => typeof text === "string" && /^[A-Za-z0-9_-]{1,64}$/.test(text);

/** What the operator hands back: `sealwire keys enrol` has written it. */
async function readEnrolment(text, me) {
  let enrolment;
  try {
    enrolment = JSON.parse(text);
  } catch {
    throw new Failure("This is not what `sealwire keys enrol` wrote.");
  }
  const { environment, agent, kid, service_keys: keys } = enrolment ?? {};
  check(Array.isArray(keys) && keys.length > 0 && keys.length <= 32, "This is not what `sealwire keys enrol` wrote.");
  check(environment === me.environment && agent === me.agent && kid === me.kid, "This enrolment is for another key or agent.");
  const pins = [];
  for (const key of keys) {
    const { service, kid: serviceKid, x } = key ?? {};
    const isOurs = isName(service) && typeof serviceKid === "string" && serviceKid.startsWith(`svc:${environment}/${service}:`);
    check(isOurs && typeof x === "string", "A key in it is not that of a service of this environment.");
    await publicKey(x);
    pins.push({ service, kid: serviceKid, x });
  }
  return pins;
}

// Calls: §6, §12.

/** Signs one call. `me` is the approver: environment, agent, kid, privateKey. */
async function signCall(me, service, method, params, token, nowMs, nonce = random(16)) {
  const [audience, iat] = [`${me.environment}/${service}`, Math.floor(nowMs / 1000)];
  const payload = JSON.stringify({ jsonrpc: "2.0", method, params, id: nonce });
  const call = { id: nonce, service, audience, payload, reply: `_INBOX.${me.agent}.relay.${nonce}` };
  const claims = {
    aud: audience, to: `rpc.v1.${service}.${me.agent}.${method}`, rto: call.reply, iat, exp: iat + 30, jti: nonce,
    ath: await digest(token), dig: await digest(payload), tmo: ANSWERED_WITHIN + (nowMs - iat * 1000),
  };
  call.proof = await jws(me.privateKey, { alg: "EdDSA", kid: me.kid, typ: "nats-rpc-v1+jwt" }, claims);
  return call;
}

const ANSWERED_WITHIN = 8000;

const HINTS = new Map(
  [[-32010, "unauthenticated"], [-32014, "overloaded"], [-32015, "too large"]].map(([code, name]) => [
    `{"jsonrpc":"2.0","error":{"code":${code},"message":"${name}"},"id":null}`, name,
  ]),
);

/** The proof in a header block, of which nothing is repaired. */
function proofOf(block) {
  const lines = block.split("\r\n");
  check(lines.length >= 3 && lines[0] === "NATS/1.0" && lines.at(-1) === "" && lines.at(-2) === "", "a malformed header block");
  const proofs = lines.slice(1, -2).flatMap((line) => {
    const found = /^([!-9;-~]+):( ?)([\t -~\u0080-\uffff]*)$/.exec(line);
    check(found, "a malformed header block");
    return found[1].toLowerCase() === "authentication-info" ? [found[3]] : [];
  });
  check(proofs.length === 1, "not one proof of the service");
  const parts = /^NatsRpc ([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)$/.exec(proofs[0]);
  check(parts, "a proof of another form");
  return parts.slice(1);
}

/** The nine conditions of §12, and then the result. `pins` are the service's pinned keys. Throws unless all hold. */
async function verified(call, { headers, payload }, pins) {
  if (headers === "" && HINTS.has(payload)) {
    throw new Failure(`Refused, says somebody who has not signed it: ${HINTS.get(payload)}. Is the key enrolled, is the token for this service, and is the clock right?`);
  }
  if (payload === "" && /^NATS\/1\.0 503[ \r]/.test(headers)) throw new Failure("The broker says that the service is not running.");
  let response;
  try {
    // What is no character would be encoded as one that the service may have signed.
    check(headers.isWellFormed() && payload.isWellFormed(), "it is no text");
    const [first, second, signature] = proofOf(headers);
    const header = part(first, ["alg", "kid", "typ"]);
    check(header.alg === "EdDSA" && header.typ === "nats-rpc-v1-reply+jwt", "another kind of proof");
    const pin = pins.find(({ kid }) => kid === header.kid);
    check(pin, "signed with a key that is not pinned");
    const holds = crypto.subtle.verify("Ed25519", await publicKey(pin.x), unb64(signature), utf8.encode(`${first}.${second}`));
    check(await holds, "the signature does not hold");
    const claims = part(second, ["iss", "to", "iat", "req", "dig"], ["iat"]);
    check(claims.to === call.reply && claims.req === (await digest(call.proof)), "it answers another request");
    check(claims.iss === call.audience, "it is another service's");
    check(claims.dig === (await digest(payload)), "its payload was changed");
    response = JSON.parse(payload);
    check(response.jsonrpc === "2.0" && "result" in response !== "error" in response, "it is no response");
    check(response.id === call.id || ("error" in response && response.id === null), "it answers another call");
  } catch (error) {
    throw new Failure(`This answer is not to be trusted, and was thrown away: ${error.message}. Tell those who run the service.`);
  }
  if ("result" in response) return response.result;
  const { code, message, data } = response.error;
  const clock = code === -32011 && Number.isSafeInteger(data?.server_time) ? ` The service's clock says ${time(data.server_time)}: set yours.` : "";
  throw new ServiceError(`${message} (${code}).${clock}`);
}

/** Proves to the gateway that the token's key is here (DPoP, RFC 9449). Its `typ` keeps it from being the proof of a message. */
async function dpop(me, token, address, nonce, nowMs) {
  const header = { typ: "dpop+jwt", alg: "EdDSA", jwk: { kty: "OKP", crv: "Ed25519", x: me.x } };
  const claims = { htm: "POST", htu: address, iat: Math.floor(nowMs / 1000), jti: random(16), ath: await digest(token), ...(nonce && { nonce }) };
  return jws(me.privateKey, header, claims);
}

/** What a token says of itself. Nobody is asked whether it is true. */
function tokenFacts(token) {
  try {
    check(/^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$/.test(token) && token.length <= 4096, "");
    const { sub, exp, cnf } = JSON.parse(strict.decode(unb64(token.split(".")[1])));
    check(typeof sub === "string" && typeof exp === "number", "");
    return { subject: sub, end: Math.floor(exp), isBound: typeof cnf?.jkt === "string" };
  } catch {
    throw new Failure("This is not an access token: paste the three parts with dots between them.");
  }
}

let gatewayNonce;

/** Has the gateway pass on a call; what comes back is not verified yet. */
async function relay(me, token, call) {
  const address = `${me.gateway}/approvals/${call.service}`;
  const { isBound } = tokenFacts(token);
  for (const isLast of [false, true]) {
    const headers = { "content-type": "application/json", authorization: `${isBound ? "DPoP" : "Bearer"} ${token}` };
    if (isBound) headers.dpop = await dpop(me, token, address, gatewayNonce, Date.now());
    let answer;
    let text;
    try {
      answer = await fetch(address, {
        method: "POST", headers, body: JSON.stringify({ proof: call.proof, payload: call.payload }), cache: "no-store",
        credentials: "omit", redirect: "error", referrerPolicy: "no-referrer", signal: AbortSignal.timeout(20000),
      });
      text = await answer.text();
    } catch {
      throw new Failure("The gateway cannot be reached, or did not answer in time. What was sent may have arrived.");
    }
    const nonce = answer.headers.get("dpop-nonce");
    gatewayNonce = nonce ?? gatewayNonce;
    if (answer.status === 401 && nonce && isBound && !isLast) continue;
    let said;
    try {
      said = JSON.parse(text);
    } catch {
      said = undefined;
    }
    if (answer.status === 200 && typeof said?.headers === "string" && typeof said.payload === "string") return said;
    const why = typeof said?.error?.message === "string" ? said.error.message : "no reason";
    const help = answer.status === 401 ? ` The token must be for ${me.gateway} and for ${call.audience}.` : "";
    throw new Failure(`The gateway refuses it (${answer.status}): ${why}.${help}`);
  }
  return undefined;
}

async function ask(me, token, service, method, params) {
  const call = await signCall(me, service, method, params, token, Date.now());
  return verified(call, await relay(me, token, call), me.pins.filter((pin) => pin.service === service));
}

// A request for approval, as it is shown and signed: docs/spec/extensions.md, section 6.3.

const TEXT = ["agent", "ask", "asked_at", "audience", "idempotency_key", "issuer", "method", "names", "params", "subject"];
const OPTIONAL = ["idempotency_key", "issuer", "names", "params"];

/** Takes a text apart into what is shown of it: a name and a written value each. Anything else in it would be signed without being shown. */
function readText(text, audience, summary) {
  const wrong = (why) => new Failure(`The service's request is not to be trusted: ${why}. Nothing was signed; tell those who run the service.`);
  let found;
  try {
    check(text.isWellFormed(), "");
    found = members(text);
  } catch {
    throw wrong("its text is not one");
  }
  const names = found.map(([name]) => name);
  const expected = TEXT.filter((name) => names.includes(name) || !OPTIONAL.includes(name));
  if (names.join() !== expected.join()) throw wrong("its text has other members than those that are signed");
  const written = Object.fromEntries(found);
  const isString = (value) => value.startsWith('"') && JSON.stringify(JSON.parse(value)) === value;
  for (const [name, value] of found) {
    const isPlain =
      name === "asked_at" ? isInteger(value)
      : name === "params" ? /^[[{]/.test(value)
      : name === "names" ? value.startsWith("[") && pieces(value).every(isString)
      : isString(value);
    if (!isPlain) throw wrong(`\`${name}\` is of another kind or spelling`);
  }
  if ("names" in written && !written.params?.startsWith("[")) throw wrong("its `names` are those of no positions");
  if (textOf(found) !== text) throw wrong("its text has other spellings than the one that is signed");
  const plain = (name) => (name in written ? JSON.parse(written[name]) : undefined);
  if (plain("audience") !== audience) throw wrong("it is of another service");
  const same = ["agent", "subject", "method", "asked_at"].every((name) => plain(name) === summary[name]);
  if (!same) throw wrong("its text is of another call");
  return found;
}

/** The text with these members. */
const textOf = (found) => `{${found.map(([name, value]) => `${JSON.stringify(name)}:${value}`).join(",")}}`;

/** What an approver signs: of what is shown, and of nothing that the service says it is. */
const approvalDigest = (found) => digest(`sealwire-approval-v1\0${textOf(found)}`);

/** Each parameter by its name, as it was sent; a name without a value if there is none. */
function parameters(found) {
  const written = Object.fromEntries(found);
  if (!("params" in written)) return [];
  if (written.params.startsWith("{")) return members(written.params);
  const names = "names" in written ? JSON.parse(written.names) : [];
  const values = pieces(written.params);
  return Array.from({ length: Math.max(names.length, values.length) }, (_, at) => [names[at] ?? `(${at + 1})`, values[at]]);
}

// What people see. As `sealwire approvals show` does it: what nobody sees, or moves other letters, is written as an escape.

const HIDDEN = /[\p{Cc}\p{Cs}\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/** Also spaces that are seen as none or as one. */
const MARKED = new RegExp(`${HIDDEN.source}| {2,}|^ | $`, "gu");

const escaped = (text) => text.replace(/[^]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
const visible = (text) => text.replace(HIDDEN, escaped);
const inAscii = (text) => text.replace(/[^ -~]/g, escaped);

function time(seconds) {
  const at = new Date(seconds * 1000);
  if (Number.isNaN(at.getTime())) return String(seconds);
  const left = Math.round(seconds - Date.now() / 1000);
  const [amount, unit] = Math.abs(left) < 120 ? [Math.abs(left), "s"] : [Math.round(Math.abs(left) / 60), "min"];
  return `${at.toISOString().slice(0, 19).replace("T", " ")} UTC (${left < 0 ? `${amount} ${unit} ago` : `in ${amount} ${unit}`})`;
}

if (typeof document !== "undefined") {
  const by = (id) => document.getElementById(id);

  /** An element. Texts become text, never markup. */
  const element = (name, attributes, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };

  /** A text of others, in which everything can be seen, and with other letters than ASCII also as escapes. */
  const shown = (text) => {
    const parts = [];
    let at = 0;
    for (const found of text.matchAll(MARKED)) {
      parts.push(text.slice(at, found.index), element("mark", {}, escaped(found[0])));
      at = found.index + found[0].length;
    }
    const all = element("span", { class: "others" }, ...parts, text.slice(at));
    const ascii = inAscii(text);
    return ascii === visible(text) ? all : element("span", {}, all, element("span", { class: "ascii" }, ` (in ASCII: ${ascii})`));
  };

  const row = (name, value) => {
    const line = element("div", {}, element("dt", {}, typeof name === "string" ? shown(name) : name));
    line.append(element("dd", {}, ...(Array.isArray(value) ? value : [typeof value === "string" ? shown(value) : value])));
    return line;
  };

  /** The approver, as this browser knows it: the key pair, which nothing can take out, and the pinned keys. */
  let me;
  /** Only here: browsers write `sessionStorage` to the disk, to open tabs again. */
  let token = "";
  /** The request that is on the page: its id, its digest, and what is to be signed. */
  let open;

  const settled = (request) => new Promise((done, failed) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => failed(new Failure(
      request.error?.name === "ConstraintError" ? "This browser has a key by now: reload the page."
      : "This browser does not let the page keep its key: allow it to store data.",
    ));
  });

  /** Does `work` in one transaction: other tabs have the same store. */
  const store = async (mode, work) => {
    const opening = indexedDB.open("sealwire-approvals", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("approver");
    const database = await settled(opening);
    try {
      return await work(database.transaction("approver", mode).objectStore("approver"));
    } finally {
      database.close();
    }
  };
  /** Tabs that know another key or other pins begin anew. */
  const tabs = new BroadcastChannel("sealwire-approvals");
  tabs.onmessage = () => location.reload();

  const say = (text, isBad = false) => {
    by("message").replaceChildren(shown(text));
    by("message").className = isBad ? "bad" : "";
  };

  const fail = (error) => say(error instanceof Failure ? error.message : `This page has failed: ${error.message}`, true);

  /** For what concerns the request on the page: another may be there when its turn comes. */
  const atOnce = (work) => (event) => {
    event.preventDefault();
    try {
      work();
    } catch (error) {
      fail(error);
    }
  };

  /** What is being done, one after the other: what else people do waits for its turn. */
  let turn = Promise.resolve();
  let waiting = 0;
  const doing = (work) => (event) => {
    event?.preventDefault();
    waiting += 1;
    document.body.classList.add("busy");
    turn = turn.then(async () => {
      try {
        await work();
      } catch (error) {
        fail(error);
      } finally {
        waiting -= 1;
        document.body.classList.toggle("busy", waiting > 0);
      }
    });
  };

  const left = () => (token ? tokenFacts(token).end - Date.now() / 1000 : 0);

  /** Takes the request from the page, with what was written about it. */
  const close = () => {
    open = undefined;
    by("reason").value = "";
    draw();
  };

  const dropToken = (why) => {
    token = "";
    close();
    say(why, true);
  };

  /** The token, unless it has ended. */
  const live = () => {
    if (token && left() <= 0) dropToken("The access token has ended: paste another one.");
    return token;
  };

  function draw() {
    const has = Boolean(me);
    const isPinned = has && me.pins.length > 0;
    by("key").hidden = has;
    by("enrol").hidden = !has;
    by("sign-in").hidden = !isPinned || Boolean(token);
    by("calls").hidden = !token || Boolean(open);
    by("call").hidden = !token || !open;
    by("forget").hidden = !has;
    by("who").textContent = has ? `${me.agent} of ${me.environment}` : "";
    by("until").textContent = token ? `token of ${visible(tokenFacts(token).subject)}, ends ${time(tokenFacts(token).end)}` : "";
    by("enrol").open = has && !isPinned;
  }

  /** The key and the pins, with what people compare. */
  const drawKey = async () => {
    by("request").value = me.request;
    const rows = [row("key", me.kid), row("its thumbprint", await thumbprint(me.x)), row("gateway", me.gateway)];
    for (const pin of me.pins) rows.push(row(`pinned: ${pin.kid}`, [element("code", {}, pin.x), " thumbprint ", element("code", {}, await thumbprint(pin.x))]));
    by("own").replaceChildren(...rows);
  };

  const makeKey = async () => {
    const [environment, agent, name] = ["environment", "agent", "key-name"].map((id) => by(id).value.trim());
    const gateway = new URL(by("gateway").value.trim() || location.origin);
    check(isName(environment) && isName(agent) && isName(name), "Names have 1 to 64 of A-Z a-z 0-9 _ -.");
    check(gateway.protocol === "https:" || ["127.0.0.1", "localhost", "[::1]"].includes(gateway.hostname), "The gateway's address must be https.");
    const pair = await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]);
    const x = b64(new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey)));
    const made = { environment, agent, kid: `${agent}.${name}`, x, privateKey: pair.privateKey, pins: [], gateway: gateway.origin };
    made.request = await enrolmentRequest(made, Date.now());
    await store("readwrite", (all) => settled(all.add(made, "me")));
    me = made;
    tabs.postMessage("");
    // Browsers may otherwise clear the store when the disk is full, and the key with it.
    await navigator.storage?.persist?.();
    await drawKey();
    draw();
    say("The key is made, and stays in this browser. Give the operator the request, and tell them the thumbprint over another channel.");
  };

  let read = [];
  const readPins = async () => {
    read = await readEnrolment(by("enrolment").value, me);
    const rows = [];
    for (const pin of read) rows.push(row(pin.kid, [element("code", {}, pin.x), " thumbprint ", element("code", {}, await thumbprint(pin.x))]));
    by("pins").replaceChildren(...rows);
    by("pin").hidden = false;
    say("Compare these with what the operator has told you. Whoever chose them can show you calls that nobody made.");
  };

  const pinKeys = async () => {
    const isOther = (pin) => !read.some(({ service }) => service === pin.service);
    me = await store("readwrite", async (all) => {
      const kept = await settled(all.get("me"));
      check(kept?.kid === me.kid && kept.x === me.x, "This browser has another key by now: reload the page.");
      const pinned = { ...kept, pins: [...kept.pins.filter(isOther), ...read] };
      await settled(all.put(pinned, "me"));
      return pinned;
    });
    read = [];
    tabs.postMessage("");
    by("pin").hidden = true;
    by("pins").replaceChildren();
    by("enrolment").value = "";
    await drawKey();
    draw();
    say("Pinned.");
  };

  const signIn = async () => {
    const pasted = by("token").value.trim();
    const { end } = tokenFacts(pasted);
    check(end > Date.now() / 1000, "This access token has ended: paste another one.");
    by("token").value = "";
    token = pasted;
    draw();
    say("");
    await navigate();
  };

  // The list.

  const needs = (call) => call.needs.map((need) => `${need.approval}: ${need.have} of ${need.count}, from ${need.roles.join(", ")}`).join("; ");
  const whose = ({ agent, subject }) => (agent === subject ? agent : `${agent} for ${subject}`);
  const PAGES = 20;

  /** All requests of a service, at most `PAGES` pages of them. */
  const listed = async (service) => {
    const all = [];
    let [cursor, unread] = [undefined, 0];
    for (let page = 0; page < PAGES; page += 1) {
      const found = await ask(me, token, service, "rpc.approvals", cursor === undefined ? undefined : { cursor });
      all.push(...found.approvals);
      unread += found.unread ?? 0;
      cursor = found.next;
      if (cursor === undefined) return { all, unread, isWhole: true };
    }
    return { all, unread, isWhole: false };
  };

  const ID = /^[A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{1,64}$/;

  const refresh = async () => {
    const services = [...new Set(me.pins.map((pin) => pin.service))];
    const lists = [];
    for (const service of services) {
      if (!live()) return;
      const title = element("h2", {}, service);
      try {
        const { all, unread, isWhole } = await listed(service);
        const lines = all.filter((call) => ID.test(call.id)).map((call) => element(
          "a", { href: `#${service}/${call.id}`, class: call.state },
          element("strong", {}, shown(call.method)), element("span", {}, visible(call.state)), element("span", {}, shown(whose(call))),
          element("span", {}, `until ${time(call.deadline)}`), element("span", {}, shown(needs(call))),
        ));
        const notes = [];
        if (lines.length === 0) notes.push("Nothing waits.");
        if (unread > 0) notes.push(`${unread} cannot be read now.`);
        if (!isWhole) notes.push("There are more: use `sealwire approvals list`.");
        lists.push(title, ...lines, element("p", { class: "note" }, notes.join(" ")));
      } catch (error) {
        if (!(error instanceof Failure)) throw error;
        lists.push(title, element("p", { class: "bad" }, shown(error.message)));
      }
    }
    by("list").replaceChildren(...lists);
    by("asked").textContent = `asked ${new Date().toLocaleTimeString()}`;
  };

  // One request.

  const linkOf = (service, id) => `#${service}/${id}`;

  const show = async (service, id) => {
    const call = await ask(me, token, service, "rpc.approval", { id });
    check(call.id === id, "The service shows another request.");
    const found = readText(call.text, `${me.environment}/${service}`, call);
    const signs = await approvalDigest(found);
    // People have gone elsewhere.
    if (!token || location.hash !== linkOf(service, id)) return;
    const written = Object.fromEntries(found);
    const plain = (name) => (name in written ? JSON.parse(written[name]) : undefined);
    const rows = [
      row("state", call.state), row("method", plain("method")), row("service", plain("audience")), row("agent", plain("agent")),
      row("on behalf of", plain("subject") === plain("agent") ? "nobody" : plain("subject")),
    ];
    if ("issuer" in written) rows.push(row("vouched for by", plain("issuer")));
    if (call.via?.length > 0) rows.push(row("passed on by", call.via.join(", ")));
    if ("idempotency_key" in written) rows.push(row("idempotency key", plain("idempotency_key")));
    rows.push(row("asked", time(plain("asked_at"))), row("until", time(call.deadline)));
    if (call.rule) rows.push(row("rule", call.rule));
    for (const need of call.needs) rows.push(row("needs", `${need.approval}: ${need.have} of ${need.count}, from ${need.roles.join(", ")}`));
    for (const { decision, agent, approval, at, reason, void: why } of call.decisions ?? []) {
      const more = [approval ? ` (${approval})` : "", `, ${time(at)}`, reason ? `: ${JSON.stringify(reason)}` : "", why ? `; no longer counts: ${why}` : ""];
      rows.push(row(decision === "deny" ? "denied" : "approved", agent + more.join("")));
    }
    by("facts").replaceChildren(...rows);
    const params = parameters(found).map(([name, value]) => row(name, value ?? element("em", {}, "not given")));
    by("params").replaceChildren(...(params.length > 0 ? params : [row(element("em", {}, "all"), written.params ?? element("em", {}, "not given"))]));
    by("digest").textContent = signs;
    by("approval").replaceChildren(...call.needs.map(({ approval }) => element("option", { value: approval }, visible(approval))));
    by("which").hidden = call.needs.length < 2;
    by("decide").hidden = call.state !== "pending" && call.state !== "approved";
    by("confirm").hidden = true;
    if (open?.digest !== signs || open.id !== id) close();
    open = { service, id, digest: signs, what: `${plain("method")} of ${whose(call)}` };
    draw();
    scrollTo(0, 0);
  };

  const isReason = (reason) => reason === "" || (reason.length <= 300 && visible(reason) === reason);

  /** The first of two steps. */
  const prepare = (decision) => {
    if (!open) return;
    const reason = by("reason").value.trim();
    check(isReason(reason), "A reason has up to 300 characters on one line, and nothing hidden.");
    const approval = decision === "approve" ? by("approval").value : undefined;
    open.params = { id: open.id, digest: open.digest, decision, ...(approval && { approval }), ...(reason && { reason }) };
    const given = approval ? ` as ${approval}` : "";
    const because = reason ? `, because: ${JSON.stringify(reason)}` : "";
    by("what").replaceChildren(
      shown(`${decision === "approve" ? "Approve" : "Deny"}${given}: ${open.what}${because}`), " ", element("code", {}, open.digest),
    );
    by("sign").textContent = decision === "approve" ? "Sign the approval" : "Sign the denial";
    by("confirm").hidden = false;
    by("decide").hidden = true;
  };

  const back = () => {
    if (open) open.params = undefined;
    by("confirm").hidden = true;
    by("decide").hidden = false;
  };

  /** Signs what the first step has put on the page, wherever people go from there. */
  const decide = () => {
    if (!open?.params) return;
    const { service, id, params } = open;
    back();
    by("reason").value = "";
    doing(async () => {
      if (!live()) return;
      const summary = await ask(me, token, service, "rpc.approve", params);
      say(`${summary.id} is ${summary.state}. ${needs(summary)}`);
      if (open?.id === id && token) await show(service, id);
    })();
  };

  const navigate = async () => {
    if (!token || !live()) return;
    const [, service, id] = /^#([A-Za-z0-9_-]{1,64})\/([^/]+)$/.exec(location.hash) ?? [];
    if (service === undefined) return refresh();
    check(ID.test(id) && me.pins.some((pin) => pin.service === service), "This link is not one to a call of a service whose key is pinned.");
    return show(service, id);
  };

  const DELETED = "#deleted";

  const forget = async () => {
    check(by("forget-name").value.trim() === me.agent, "Type the agent's name to delete its key.");
    await store("readwrite", (all) => settled(all.delete("me")));
    tabs.postMessage("");
    // Nothing of what this tab knows is left.
    history.replaceState(null, "", DELETED);
    location.reload();
  };

  const REFRESHED_EVERY = 15000;

  const start = async () => {
    check(globalThis.top === globalThis.self, "This page does not work inside another one.");
    for (const [id, work] of [["make", makeKey], ["read", readPins], ["pin", pinKeys], ["sign-in-button", signIn], ["forget-button", forget]]) {
      by(id).addEventListener("click", doing(work));
    }
    const now = [
      ["approve", () => prepare("approve")], ["deny", () => prepare("deny")], ["back", back], ["sign", decide],
      ["sign-out", () => dropToken("The access token is forgotten.")],
    ];
    for (const [id, work] of now) by(id).addEventListener("click", atOnce(work));
    addEventListener("hashchange", () => {
      say("");
      close();
      doing(navigate)();
    });
    by("gateway").value = location.origin;
    setInterval(() => {
      if (!live() || document.hidden) return;
      draw();
      if (!open && waiting === 0) doing(refresh)();
    }, REFRESHED_EVERY);
    check(globalThis.isSecureContext, "This page works over https only.");
    me = await store("readonly", (all) => settled(all.get("me")));
    if (!me && location.hash === DELETED) say("The key is deleted. Ask the operator to revoke it.");
    try {
      await crypto.subtle.generateKey("Ed25519", false, ["sign"]);
    } catch {
      throw new Failure("This browser cannot sign with Ed25519: update it (Chromium 137, Firefox 129, Safari 17 or later).");
    }
    if (me) await drawKey();
    draw();
    document.body.dataset.state = "ready";
  };
  doing(start)();
}
