// What the page's own functions make of tests/vectors, and of texts that are not what they seem. Evaluated where the page's script runs;
// gives back a list of what is wrong.
async (vectors) => {
  const wrong = [];
  const equal = (what, found, expected) => {
    if (JSON.stringify(found) !== JSON.stringify(expected)) wrong.push(`${what}: ${JSON.stringify(found)}`);
  };
  const refused = async (what, work) => {
    try {
      wrong.push(`${what}: ${JSON.stringify(await work())}`);
    } catch (error) {
      if (!(error instanceof Failure)) wrong.push(`${what}: ${error}`);
    }
  };
  const bytes = (hex) => Uint8Array.from(hex.match(/../g), (byte) => parseInt(byte, 16));
  const pkcs8 = (seed) => new Uint8Array([...bytes("302e020100300506032b657004220420"), ...bytes(seed)]);

  // Calls under the Ed25519 key, byte for byte: Ed25519 signatures are deterministic.
  const key = vectors.agent_keys.find(({ alg }) => alg === "EdDSA");
  const privateKey = await crypto.subtle.importKey("pkcs8", pkcs8(key.seed_hex), "Ed25519", false, ["sign"]);
  const proofs = new Map();
  for (const { name, kind, headers, proof_header: header, proof_claims: claims } of vectors.vectors) {
    if (kind !== "request" || header?.alg !== "EdDSA" || header.kid !== key.kid || !name.startsWith("V")) continue;
    const proof = headers.Authorization.split("~")[1];
    equal(name, await jws(privateKey, header, claims), proof);
    proofs.set(name, { proof, claims, payload: vectors.vectors.find((vector) => vector.name === name).payload });
  }
  equal("calls under the key", proofs.size >= 2, true);

  // Answers to these calls.
  const pins = vectors.service_keys.map(({ kid, jwk }) => ({ kid, x: jwk.x }));
  const judged = { accept: 0, refused: 0 };
  for (const vector of vectors.vectors) {
    const asked = [...proofs].find(([name]) => name === vector.answers || name.split(" ")[0] === vector.answers)?.[1];
    if (vector.kind !== "reply" || !asked || asked.claims.win || vector.header_list) continue;
    const block = `NATS/1.0\r\n${Object.entries(vector.headers).map(([name, value]) => `${name}: ${value}\r\n`).join("")}\r\n`;
    const call = { id: JSON.parse(asked.payload).id, proof: asked.proof, audience: vectors.service, reply: asked.claims.rto };
    const take = () => verified(call, { headers: block, payload: vector.payload }, pins);
    // Where it arrived is the gateway's word, so the signed reply subject decides alone.
    if (vector.expect === "accept") {
      judged.accept += 1;
      equal(vector.name, await take(), JSON.parse(vector.payload).result);
    } else if (vector.subject === call.reply) {
      judged.refused += 1;
      await refused(vector.name, take);
    }
    for (const [what, changed] of [
      ["the payload changed", { headers: block, payload: `${vector.payload} ` }],
      ["no header", { headers: "", payload: vector.payload }],
      ["a header twice", { headers: block.replace(/(Authentication-Info:.*\r\n)/i, "$1$1"), payload: vector.payload }],
      ["a folded header", { headers: block.replace("NatsRpc ", "NatsRpc\r\n "), payload: vector.payload }],
      ["no version", { headers: block.replace("NATS/1.0\r\n", ""), payload: vector.payload }],
    ]) await refused(`${vector.name}, ${what}`, () => verified(call, changed, pins));
    await refused(`${vector.name}, another key pinned`, () => verified(call, { headers: block, payload: vector.payload }, [{ kid: pins[0].kid, x: key.jwk.x }]));
    await refused(`${vector.name}, no key pinned`, () => verified(call, { headers: block, payload: vector.payload }, []));
  }
  equal("answers", judged.accept >= 1 && judged.refused >= 1, true);

  // Each of the nine conditions of SPEC.md §12 by itself, in answers that the service's key has signed.
  const serviceKey = await crypto.subtle.importKey("pkcs8", pkcs8(vectors.service_keys[0].seed_hex), "Ed25519", false, ["sign"]);
  const me = { environment: "prod", agent: "tina", kid: "tina.k1", x: key.jwk.x, privateKey, pins };
  const call = await signCall(me, "math", "rpc.approvals", undefined, "e30.e30.AA", 1790000000500, "AAECAwQFBgcICQoLDA0ODw");
  const signedAs = part(call.proof.split(".")[1], ["aud", "to", "rto", "iat", "exp", "jti", "ath", "dig", "tmo"], ["iat", "exp", "tmo"]);
  equal("what a call says", [signedAs.aud, signedAs.to, signedAs.rto, signedAs.iat, signedAs.exp, signedAs.tmo], [
    "prod/math", "rpc.v1.math.tina.rpc.approvals", "_INBOX.tina.relay.AAECAwQFBgcICQoLDA0ODw", 1790000000, 1790000030, 8500,
  ]);
  equal("no parameters in it", JSON.parse(call.payload), { jsonrpc: "2.0", method: "rpc.approvals", id: call.id });
  const payload = JSON.stringify({ jsonrpc: "2.0", result: { approvals: [] }, id: call.id });
  const header = { alg: "EdDSA", kid: pins[0].kid, typ: "nats-rpc-v1-reply+jwt" };
  const claims = { iss: "prod/math", to: call.reply, iat: 1790000001, req: await digest(call.proof), dig: await digest(payload) };
  const answer = async (otherHeader = header, otherClaims = claims, text = payload, name = "Authentication-Info") => ({
    headers: `NATS/1.0\r\n${name}: NatsRpc ${await jws(serviceKey, otherHeader, otherClaims)}\r\n\r\n`, payload: text,
  });
  equal("an answer", await verified(call, await answer(), pins), { approvals: [] });
  equal("its header in lower case", await verified(call, await answer(header, claims, payload, "authentication-info"), pins), { approvals: [] });
  for (const [what, changed] of [
    ["alg", { ...header, alg: "HS256" }], ["kid", { ...header, kid: "svc:prod/math:k2" }], ["typ", { ...header, typ: "nats-rpc-v1+jwt" }],
    ["crit", { ...header, crit: [] }], ["no typ", { alg: header.alg, kid: header.kid }],
  ]) await refused(`an answer's header, ${what}`, async () => verified(call, await answer(changed), pins));
  for (const [what, changed] of [
    ["iss", { ...claims, iss: "prod/bank" }], ["to", { ...claims, to: `${call.reply}x` }], ["req", { ...claims, req: claims.dig }],
    ["dig", { ...claims, dig: claims.req }], ["iat", { ...claims, iat: 1790000001.5 }], ["iat as text", { ...claims, iat: "1790000001" }],
    ["more", { ...claims, more: 1 }], ["fewer", { iss: claims.iss, to: claims.to, req: claims.req, dig: claims.dig }],
  ]) await refused(`an answer's claims, ${what}`, async () => verified(call, await answer(header, changed), pins));
  await refused("an answer's claim twice", async () => {
    const twice = `${b64(utf8.encode(JSON.stringify(header)))}.${b64(utf8.encode(JSON.stringify(claims).replace("{", '{"iss":"prod/bank",')))}`;
    const signature = b64(new Uint8Array(await crypto.subtle.sign("Ed25519", serviceKey, utf8.encode(twice))));
    return verified(call, { headers: `NATS/1.0\r\nAuthentication-Info: NatsRpc ${twice}.${signature}\r\n\r\n`, payload }, pins);
  });
  for (const [what, text] of [
    ["another call's", payload.replace(call.id, "x")], ["result and error", payload.replace('"result"', '"error":{},"result"')],
    ["neither", '{"jsonrpc":"2.0","id":null}'], ["no JSON", "{"], ["another version", payload.replace("2.0", "1.0")],
  ]) await refused(`a response, ${what}`, async () => verified(call, await answer(header, { ...claims, dig: await digest(text) }, text), pins));
  const marked = payload.replace("[]", '["\ufffd"]');
  const ofMarked = await answer(header, { ...claims, dig: await digest(marked) }, marked);
  equal("the character of replacements", await verified(call, ofMarked, pins), { approvals: ["\ufffd"] });
  await refused("half a character in its place", () => verified(call, { ...ofMarked, payload: marked.replace("\ufffd", "\ud800") }, pins));
  await refused("half a character in a header", () => verified(call, { ...ofMarked, headers: ofMarked.headers.replace("\r\n\r\n", "\r\nx: \ud800\r\n\r\n") }, pins));
  for (const [what, headers, text] of [
    ["a hint", "", '{"jsonrpc":"2.0","error":{"code":-32010,"message":"unauthenticated"},"id":null}'], ["nobody there", "NATS/1.0 503\r\n\r\n", ""],
    ["an unsigned result", "", payload], ["nothing", "", ""],
  ]) await refused(what, () => verified(call, { headers, payload: text }, pins));
  for (const text of ["AB", "AA=", "A", "A+", "A A", ""]) await refused(`base64url ${text}`, async () => unb64(text));
  for (const x of ["AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "JuiVj8KyJ7BFw_SJ8u-Y8NXfrAXTxjM5sTgCiG1T_AU", "7P_______________________________________38"]) {
    await refused(`the key ${x}`, () => publicKey(x));
  }

  // Enrolments.
  const [{ kid: serviceKid, x: serviceX }] = pins;
  const enrolled = (keys) => JSON.stringify({ environment: me.environment, agent: me.agent, kid: me.kid, service_keys: keys });
  const pinned = { service: serviceKid.split(/[/:]/)[2], kid: serviceKid, x: serviceX };
  equal("an enrolment", await readEnrolment(enrolled([pinned]), me), [pinned]);
  for (const keys of [null, [], [null], [5], [{ ...pinned, x: 5 }], [{ ...pinned, kid: 5 }], [{ ...pinned, service: "*" }], Array(33).fill(pinned)]) {
    await refused(`an enrolment with ${JSON.stringify(keys).slice(0, 80)}`, () => readEnrolment(enrolled(keys), me));
  }

  // Approvals: the text and the digest of crates/cli/src/call/approvals/request.rs.
  const text =
    '{"agent":"planner","ask":"AAECAwQFBgcICQoLDA0ODw","asked_at":1790000000,"audience":"prod/bank","idempotency_key":"k-1",' +
    '"issuer":"https://idp.example","method":"bank/transfer","names":["to","amount"],"params":["alice",1000001],"subject":"carol"}';
  const summary = { agent: "planner", subject: "carol", method: "bank/transfer", asked_at: 1790000000 };
  const read = (changed) => readText(changed, "prod/bank", summary);
  equal("the digest", await approvalDigest(read(text)), "mGWQLELV8A7e28PlkJfBz9e5XDH03RKo3DvAG6GyWpg");
  equal("positions", parameters(read(text)), [["to", '"alice"'], ["amount", "1000001"]]);
  const written = '{"a":1.00,"b":12345678901234567890,"c":{"d":[" , ]}"]},"e":"\\u0061\\"\\\\","a":1e400}';
  const unnamed = text.replace('"names":["to","amount"],', "");
  equal("without names", parameters(read(unnamed)), [["(1)", '"alice"'], ["(2)", "1000001"]]);
  equal("as written", parameters(read(unnamed.replace('["alice",1000001]', written))), [
    ["a", "1.00"], ["b", "12345678901234567890"], ["c", '{"d":[" , ]}"]}'], ["e", '"\\u0061\\"\\\\"'], ["a", "1e400"],
  ]);
  equal("a name without a value", parameters(read(text.replace('["alice",1000001]', '["alice"]'))), [["to", '"alice"'], ["amount", null]]);
  equal("no parameters", parameters(read(unnamed.replace('["alice",1000001]', "[]"))), []);
  for (const [what, changed] of [
    ["white space", text.replace('"agent":', '"agent": ')],
    ["a further member", text.replace('"subject"', '"note":1,"subject"')],
    ["a member twice", text.replace('"subject"', '"subject":"x","subject"')],
    ["an escape", text.replace("carol", "c\\u0061rol")],
    ["an escape in a name", text.replace('"subject"', '"\\u0073ubject"')],
    ["another order", `${text.replace('"agent":"planner",', "").slice(0, -1)},"agent":"planner"}`],
    ["another service", text.replace("prod/bank", "prod/vault")],
    ["another environment", text.replace("prod/bank", "test/bank")],
    ["another method", text.replace("bank/transfer", "bank/close")],
    ["another subject", text.replace("carol", "dave")],
    ["a time of another form", text.replace("1790000000", "1.79e9")],
    ["parameters that are none", text.replace('["alice",1000001]', "7")],
    ["names of an object", text.replace('["alice",1000001]', '{"to":"alice"}')],
    ["names of nothing", text.replace('"params":["alice",1000001],', "")],
    ["half a character", text.replace("alice", "\ud800")],
    ["names that are none", text.replace('"amount"', "7")],
    ["no object", "[1]"],
    ["no JSON", text.slice(0, -1)],
  ]) await refused(what, () => read(changed));

  // What nobody sees, or moves other letters.
  equal("hidden", visible("a\u202eb\u{e0041}c\u200bd\u0000e\ufefff\u2066g\ud800"), "a\\u202eb\\udb40\\udc41c\\u200bd\\u0000e\\ufefff\\u2066g\\ud800");
  equal("in ASCII", inAscii("p\u0430ypal"), "p\\u0430ypal");

  return wrong;
}
