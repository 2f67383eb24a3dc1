// N Deployments by cdk8s, each about as large as the mean object of avactl:
//   node main.js N OUTDIR FILE_PER_CHART|FILE_PER_RESOURCE
const { ApiObject, App, Chart, YamlOutputType } = require('cdk8s');

const [count, outdir, files] = process.argv.slice(2);
const app = new App({ outdir, yamlOutputType: YamlOutputType[files] });
const chart = new Chart(app, 'all');

for (let i = 0; i < Number(count); i++) {
  const name = `serve-${i}`;
  const select = {
    'app.kubernetes.io/component': 'server',
    'app.kubernetes.io/instance': name,
    'app.kubernetes.io/name': 'servingdeployment',
  };
  const labels = { ...select, 'app.kubernetes.io/managed-by': 'cdk8s', 'example.com/team': `team-${i % 100}` };
  new ApiObject(chart, name, {
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name, namespace: `team-${i % 100}`, labels },
    spec: {
      replicas: 1 + (i % 8),
      selector: { matchLabels: select },
      template: {
        metadata: { labels },
        spec: {
          containers: [
            {
              name: 'server',
              image: 'registry.example.com/serving@sha256:d02f83a3aeda4c17444444180da1241be9a6ec5fcf4d736db4cf4a8b91c95eb9',
              args: ['--port', '8080', `--model=/models/${name}`],
              env: [
                { name: 'MODEL', value: name },
                { name: 'OMP_NUM_THREADS', value: '4' },
              ],
              ports: [{ name: 'http', containerPort: 8080 }],
              readinessProbe: { httpGet: { path: '/ping', port: 8080 }, periodSeconds: 10 },
              resources: { requests: { cpu: '4', memory: '16Gi' }, limits: { memory: '16Gi' } },
              securityContext: {
                allowPrivilegeEscalation: false,
                capabilities: { drop: ['ALL'] },
                runAsNonRoot: true,
                seccompProfile: { type: 'RuntimeDefault' },
              },
            },
          ],
          securityContext: { runAsUser: 1000, runAsGroup: 1000 },
        },
      },
    },
  });
}

app.synth();
