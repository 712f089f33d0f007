// How a receiver trusts a request of Fleet's. Node only, no packages: copy it. See guides/verifying.md.
import { createHmac, timingSafeEqual } from "node:crypto";

function signed(secret, start, content, signatures = "") {
  const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  const expected = Buffer.from("v1," + createHmac("sha256", key).update(start).update(content).digest("base64"));
  const given = signatures.split(" ").map((one) => Buffer.from(one));
  return given.some((one) => one.length === expected.length && timingSafeEqual(one, expected));
}

// Returns the request's fence, to be kept as the next lastFence of its schedule. `headers` are request.headers of
// node:http (names in lower case), `body` is the raw Buffer.
export function verify(secret, headers, body, lastFence = 0, now = Date.now() / 1000) {
  const sent = headers["webhook-timestamp"], fence = headers["fleet-fence"] ?? "", start = `${headers["webhook-id"]}.${sent}.`;
  if (!signed(secret, start, body, headers["webhook-signature"])) throw new Error("The signature does not match.");
  if (!signed(secret, start, fence, headers["fleet-fence-signature"])) throw new Error("The fence's signature does not match.");
  if (!(Math.abs(now - Number(sent)) <= 300)) throw new Error("The request is too old or too new.");
  if (!(Number(fence) > lastFence)) throw new Error("A newer request of this schedule was here before.");
  return Number(fence);
}
