// Sends one order for each key, and leaves all else to undici's RetryAgent: what it tells at the end is status and body, one line a key. What the
// agent does not take upon itself (an answer other than 200 whose head has come, and whose body is torn) is asked again here, as a program
// would: with the same key.
import { Agent, RetryAgent } from 'undici'

const [port, ...keys] = process.argv.slice(2)
// A connection for each request.
const agent = new RetryAgent(new Agent({ pipelining: 0 }), {
  methods: ['POST'],
  statusCodes: [409, 503],
  maxRetries: 40,
  minTimeout: 20,
  maxTimeout: 200,
})

async function send(key) {
  const { statusCode, headers, body } = await agent.request({
    origin: `http://127.0.0.1:${port}`,
    path: '/pay',
    method: 'POST',
    headers: { 'idempotency-key': key, 'x-tenant': 'acme' },
    body: '{}',
  })
  return `${statusCode} ${headers['idempotent-replayed'] ?? 'none'} ${await body.text()}`
}

async function answered(key) {
  for (let left = 40; ; left -= 1) {
    try {
      return await send(key)
    } catch (error) {
      if (left === 0) throw error
    }
  }
}

for (const key of keys) console.log(await answered(key))
