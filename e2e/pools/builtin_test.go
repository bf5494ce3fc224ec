// SPDX-License-Identifier: MPL-2.0

package pools

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/e2e/clustertest"
	"github.com/nomad-gpu/nomad-gpu/e2e/peers"
)

func example(t *testing.T, name string) string {
	data, err := os.ReadFile(filepath.Join(peers.Root(), "examples", "autoscaler", name))
	must.NoError(t, err)
	return string(data)
}

// group makes a stand-in with places for four instances.
func (m *market) group(name, metadata, others string, id func(n int) string) *group {
	nomad, err := url.Parse(m.NomadAddress())
	must.NoError(m.t, err)
	g := &group{t: m.t, name: name, id: id, metadata: metadata, host: nomad.Hostname(), live: map[string]*exec.Cmd{}}
	for n := range 4 {
		p, err := m.Place(cluster.Client{Name: fmt.Sprintf("%s-%d", name, n), NodePool: NodePool, NodeClass: name, Profile: profile, Meta: map[string]string{"gpu.lifecycle": "spot"}})
		must.NoError(m.t, err)
		must.NoError(m.t, os.WriteFile(p.DataDir+"-cloud.hcl", fmt.Appendf(nil, "client {\n  options = {\n    \"fingerprint.denylist\" = %q\n  }\n}\n", others), 0o600))
		g.places = append(g.places, p)
	}
	m.t.Cleanup(func() {
		for _, id := range g.instances() {
			g.terminate(id)
		}
	})
	return g
}

// The example policies of the three clouds, with shorter times, over stand-ins
// of the clouds' APIs whose instances are real Nomad clients.
func TestTheBuiltInTargetsOfTheCloudsAreDrivenUnchanged(t *testing.T) {
	m := &market{Cluster: clustertest.Start(t), t: t}
	_, err := m.Nomad().NodePools().Register(&api.NodePool{Name: NodePool}, nil)
	must.NoError(t, err)

	groups := map[string]*group{
		"h100-spot": m.group("h100-spot", "AWS_ENV_URL=ADDRESS/meta-data/", "env_gce,env_azure,env_digitalocean",
			func(n int) string { return fmt.Sprintf("i-%017d", n) }),
		"azure-h100": m.group("azure-h100", "AZURE_ENV_URL=ADDRESS/", "env_aws,env_gce,env_digitalocean",
			func(n int) string { return fmt.Sprintf("azure-h100_%d", n) }),
		"gce-h100": m.group("gce-h100", "GCE_ENV_URL=ADDRESS/", "env_aws,env_azure,env_digitalocean",
			func(n int) string { return fmt.Sprintf("gce-h100-%d", n) }),
	}
	world := newClouds(t, map[string]http.Handler{
		"autoscaling.us-east-1.amazonaws.com": http.HandlerFunc(groups["h100-spot"].aws),
		"login.microsoftonline.com":           http.HandlerFunc(token),
		"management.azure.com":                http.HandlerFunc(groups["azure-h100"].azure),
		"oauth2.googleapis.com":               http.HandlerFunc(token),
		"compute.googleapis.com":              http.HandlerFunc(groups["gce-h100"].google),
	})

	write := func(name, text string) string {
		path := filepath.Join(m.Dir(), name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	pools := regexp.MustCompile(`(?ms)^pool "(h100-spot|azure-h100|gce-h100)" \{.*?^\}`).FindAllString(example(t, "pools.hcl"), -1)
	must.Len(t, 3, pools)
	slow := regexp.MustCompile(`(?m)^ *idle_time .*\n`).ReplaceAllString(strings.Join(pools, "\n"), "")
	write("pools.hcl", strings.ReplaceAll(slow, "  max ", "  idle_time = \"5s\"\n  max "))
	for _, name := range []string{"aws-asg", "azure-vmss", "gce-mig"} {
		write("policies/"+name+".hcl", strings.NewReplacer(`"15s"`, `"1s"`, `"1m"`, `"1s"`).Replace(example(t, "policies/"+name+".hcl")))
	}
	write("google.json", `{"type":"authorized_user","client_id":"id","client_secret":"none","refresh_token":"none"}`)
	config := write("autoscaler.hcl", strings.NewReplacer("/opt/nomad-autoscaler/plugins", filepath.Join(clustertest.Programs, "autoscaler"),
		"/etc/nomad-autoscaler", m.Dir(), "http://127.0.0.1:4646", m.NomadAddress()).Replace(example(t, "agent.hcl"))+
		fmt.Sprintf("log_json = true\nhttp {\n  bind_address = \"127.0.0.1\"\n  bind_port = %d\n}\n", m.HTTPPort()+10))
	scaler := &agent{t: t, config: config, log: filepath.Join(m.Dir(), "autoscaler.log"), program: m.Program("nomad-autoscaler"),
		env: []string{"HTTPS_PROXY=" + world.Proxy, "SSL_CERT_FILE=" + world.CA, "AWS_CA_BUNDLE=" + world.CA, "NOMAD_ADDR=" + m.NomadAddress(),
			"AWS_ACCESS_KEY_ID=none", "AWS_SECRET_ACCESS_KEY=none", "AWS_EC2_METADATA_DISABLED=true",
			"AZURE_TENANT_ID=none", "AZURE_CLIENT_ID=none", "AZURE_CLIENT_SECRET=none"}}
	scaler.start()
	t.Cleanup(scaler.kill)

	for name := range groups {
		m.gang(name, 2, "prefer", fmt.Sprintf("constraint {\n  attribute = \"${node.class}\"\n  value = %q\n}", name))
	}
	for name, g := range groups {
		must.Eq(t, []string{name + "-0", name + "-1"}, m.running(name, 2))
		must.Eq(t, []int{2}, g.asked, must.Sprint(name))
	}
	must.NoError(t, os.WriteFile(filepath.Join(m.Dir(), "go"), nil, 0o644))
	must.NoError(t, cluster.WaitFor(t.Context(), time.Minute, "all groups are empty, and no node is left", func() (bool, string, error) {
		nodes, _, err := m.Nomad().Nodes().List(nil)
		if err != nil {
			return false, "", err
		}
		left := ""
		for name, g := range groups {
			left += fmt.Sprint(name, g.instances(), " ")
		}
		for _, g := range groups {
			if len(g.instances()) > 0 {
				return false, left, nil
			}
		}
		return len(nodes) == 0, fmt.Sprint(len(nodes), " nodes"), nil
	}))
	for name, g := range groups {
		must.Eq(t, []int{2}, g.asked, must.Sprint(name))
	}
}
