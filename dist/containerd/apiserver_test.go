package containerd

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/yaml"

	"premix/internal/testkit/ports"
)

// apiserver is the version of the API server that scripts/setup.sh builds.
const apiserver = "1.33.3"

const token = "test"

// A real API server accepts kubernetes.yaml without a warning, also when it is applied a
// second time. It refuses a document with an unknown field.
func TestAPIServer(t *testing.T) {
	apply := applier(t)
	content, err := os.ReadFile("kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{http.StatusCreated, http.StatusOK} {
		for _, document := range bytes.Split(content, []byte("\n---\n")) {
			status, answer, warnings := apply(t, document)
			if status != want || len(warnings) > 0 {
				t.Fatalf("status %d, want %d; warnings %q: %s", status, want, warnings, answer)
			}
		}
	}
	wrong := bytes.Replace(content[bytes.Index(content, []byte("apiVersion: node.k8s.io")):], []byte("handler:"), []byte("handel:"), 1)
	status, answer, _ := apply(t, wrong)
	var said struct{ Message string }
	if err := json.Unmarshal(answer, &said); err != nil {
		t.Fatal(err)
	}
	if status/100 == 2 || !strings.Contains(said.Message, "handel") {
		t.Errorf("a field that is not known: status %d, %q", status, said.Message)
	}
}

// applier starts an API server. It returns a function that applies a document to it, as
// kubectl apply --server-side does.
func applier(t *testing.T) func(t *testing.T, document []byte) (status int, answer []byte, warnings []string) {
	t.Helper()
	url := startAPIServer(t)
	client := &http.Client{
		Timeout:   time.Minute,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, // the server makes its certificate at its start
	}
	return func(t *testing.T, document []byte) (status int, answer []byte, warnings []string) {
		t.Helper()
		var head struct {
			APIVersion, Kind string
			Metadata         struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal(document, &head); err != nil {
			t.Fatal(err)
		}
		path := map[string]string{
			"Namespace":      "/api/v1/namespaces",
			"ConfigMap":      "/api/v1/namespaces/premix/configmaps",
			"ServiceAccount": "/api/v1/namespaces/premix/serviceaccounts",
			"DaemonSet":      "/apis/apps/v1/namespaces/premix/daemonsets",
			"RuntimeClass":   "/apis/node.k8s.io/v1/runtimeclasses",
		}[head.Kind]
		if path == "" {
			t.Fatalf("where are objects of kind %s?", head.Kind)
		}
		// This is the request of kubectl apply --server-side.
		to := fmt.Sprintf("%s%s/%s?fieldManager=test&fieldValidation=Strict", url, path, head.Metadata.Name)
		req, err := http.NewRequest(http.MethodPatch, to, bytes.NewReader(document))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/apply-patch+yaml")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err = io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, answer, resp.Header.Values("Warning")
	}
}

// startAPIServer starts etcd and an API server, which end with the test. It returns the
// address of the server when the server is ready.
func startAPIServer(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(cache, "premix", "kubernetes", apiserver, "kube-apiserver")
	if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) {
		t.Skip("there is no kube-apiserver: scripts/setup.sh kubernetes builds it")
	}
	etcd, err := exec.LookPath("etcd")
	if err != nil {
		t.Fatal("there is no etcd: scripts/setup.sh kubernetes installs it")
	}
	dir := t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"sa.key":     pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		"tokens.csv": []byte(token + `,admin,admin,"system:masters"` + "\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	free, err := ports.Free(3)
	if err != nil {
		t.Fatal(err)
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", free[0]), fmt.Sprintf("http://127.0.0.1:%d", free[1])
	start(t, dir, exec.Command(etcd, "--data-dir", "etcd", "--unsafe-no-fsync",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer))
	ended := start(t, dir, exec.Command(program, "--etcd-servers="+client, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", free[2]), "--cert-dir=certs", "--token-auth-file=tokens.csv",
		"--service-account-key-file=sa.key", "--service-account-signing-key-file=sa.key", "--service-account-issuer=https://premix.test",
		"--allow-privileged=true", "--service-cluster-ip-range=10.96.0.0/24", "--endpoint-reconciler-type=none"))

	url := fmt.Sprintf("https://127.0.0.1:%d", free[2])
	insecure := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for until := time.Now().Add(3 * time.Minute); ; {
		req, err := http.NewRequest(http.MethodGet, url+"/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		if resp, err := insecure.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return url
			}
		}
		select {
		case <-ended:
			t.Fatal("the API server ended")
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(until) {
			t.Fatal("the API server does not get ready")
		}
	}
}

// start starts a program that ends with the test. The channel is closed if it ends before.
func start(t *testing.T, dir string, cmd *exec.Cmd) (ended <-chan struct{}) {
	t.Helper()
	log, err := os.Create(filepath.Join(dir, filepath.Base(cmd.Path)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		_ = log.Close()
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("%s said, at the end:\n%s", cmd.Path, said[max(0, len(said)-4096):])
		}
	})
	return done
}
