// The certified OpenID Connect provider of npm, as tests of the front start it: `node provider.mjs PORT JWKS MODULES`.
// Anybody logs in by name; who is called ana is in two groups, crowd in more than a front reads, loner in none it tells.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [port, keys, modules] = process.argv.slice(2);
const found = createRequire(`${modules}/`).resolve('oidc-provider');
const { Provider } = await import(pathToFileURL(found));

const groups = (name) => {
  if (name === 'crowd') return Array.from({ length: 900 }, (_, n) => `group-${n}`);
  return name === 'loner' ? undefined : ['gpu-operators', 'research'];
};
const client = (id) => ({
  client_id: id,
  token_endpoint_auth_method: 'none',
  application_type: 'native',
  grant_types: ['urn:ietf:params:oauth:grant-type:device_code', 'refresh_token'],
  redirect_uris: [],
  response_types: [],
  id_token_signed_response_alg: process.env.ALGORITHM ?? 'RS256',
});

const secret = process.env.SECRET;
const browsers = (id) => ({
  client_id: id,
  ...(secret ? { client_secret: secret } : {}),
  token_endpoint_auth_method: secret ? 'client_secret_basic' : 'none',
  application_type: 'native',
  grant_types: ['authorization_code'],
  redirect_uris: [process.env.REDIRECT],
  response_types: ['code'],
  id_token_signed_response_alg: process.env.ALGORITHM ?? 'RS256',
});

// A job's client: a secret of its own, and access tokens that are JWTs for the audience that it names.
const job = (id) => ({
  client_id: id,
  client_secret: 'of a job',
  token_endpoint_auth_method: 'client_secret_basic',
  application_type: 'native',
  grant_types: ['client_credentials'],
  redirect_uris: [],
  response_types: [],
});

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [client('backstop-cli'), client('another-tool'), job('ci'), job('ci-loner'), ...(process.env.REDIRECT ? [browsers('backstop-console')] : [])],
  jwks: JSON.parse(readFileSync(keys, 'utf8')),
  features: { deviceFlow: { enabled: true }, devInteractions: { enabled: true }, revocation: { enabled: true },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, audience) => ({ audience, scope: 'groups', accessTokenFormat: 'jwt', jwt: { sign: { alg: 'RS256' } } }),
    },
  },
  extraTokenClaims: (_, token) =>
    token.kind === 'ClientCredentials' && token.clientId !== 'ci-loner' ? { groups: ['ci-jobs'] } : undefined,
  scopes: ['openid', 'offline_access', 'groups'],
  claims: { openid: ['sub'], groups: ['groups'] },
  conformIdTokenClaims: false,
  enabledJWA: { idTokenSigningAlgValues: ['RS256', 'ES256', 'EdDSA'] },
  cookies: { keys: ['of a test'] },
  findAccount: (_, sub) => ({ accountId: sub, claims: () => ({ sub, groups: groups(sub) }) }),
  issueRefreshToken: () => true,
  ttl: { IdToken: 3600, DeviceCode: 600, Grant: 3600, Session: 3600, Interaction: 600, AccessToken: 600, RefreshToken: 3600 },
});
provider.listen(Number(port), '127.0.0.1', () => console.log('listening'));
