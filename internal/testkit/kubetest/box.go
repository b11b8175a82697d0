package kubetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"premix/internal/kit/proc"
	"premix/internal/testkit/kubeapi"
	"premix/internal/testkit/ports"
)

// Version is the version of Kubernetes that scripts/setup.sh builds.
const Version = "1.33.3"

// Programs of a box.
const (
	Etcd       = "etcd"
	APIServer  = "kube-apiserver"
	Controller = "kube-controller-manager"
	Scheduler  = "kube-scheduler"
)

const adminToken = "admin"

// startTime is the longest time in which a program must be ready, on a busy machine.
const startTime = 5 * time.Minute

// Box is a running cluster.
type Box struct {
	Dir    string
	URL    string // of the API server
	Client *kubeapi.Client

	admin *rest.Config
	args  map[string][]string

	mu      sync.Mutex
	running map[string]*process
	closers []func()
}

// process is a program that was started.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// binary returns the path of a program.
func binary(program string) (string, error) {
	if program == Etcd {
		return exec.LookPath(Etcd)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "premix", "kubernetes", Version, program)
	_, err = os.Stat(path)
	return path, err
}

// Missing returns a message about a program that a box needs and that is not installed, or
// "".
func Missing() string {
	for _, p := range []string{Etcd, APIServer, Controller, Scheduler} {
		if _, err := binary(p); err != nil {
			return "there is no " + p + ": scripts/setup.sh kubernetes installs it"
		}
	}
	return ""
}

// Start starts a cluster in dir, without a node.
func Start(ctx context.Context, dir string) (*Box, error) {
	if missing := Missing(); missing != "" {
		return nil, errors.New(missing)
	}
	var err error
	// Another process may take a free port before a program listens on it.
	for range 3 {
		var b *Box
		if b, err = start(ctx, dir); err == nil {
			return b, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

func start(ctx context.Context, dir string) (_ *Box, err error) {
	b := &Box{Dir: dir, running: make(map[string]*process)}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if err := os.RemoveAll(filepath.Join(dir, "etcd")); err != nil {
		return nil, err
	}
	free, err := ports.Free(3)
	if err != nil {
		return nil, err
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", free[0]), fmt.Sprintf("http://127.0.0.1:%d", free[1])
	b.URL = fmt.Sprintf("https://127.0.0.1:%d", free[2])
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	for name, content := range map[string][]byte{
		"sa.key":     pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		"tokens.csv": []byte(adminToken + `,admin,admin,"system:masters"` + "\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	kubeconfig, err := b.Kubeconfig("admin", adminToken, "default")
	if err != nil {
		return nil, err
	}
	b.args = map[string][]string{
		Etcd: {"--data-dir", "etcd", "--unsafe-no-fsync",
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer},
		APIServer: {"--etcd-servers=" + client, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", free[2]), "--cert-dir=certs", "--token-auth-file=tokens.csv", "--authorization-mode=RBAC",
			"--service-account-key-file=sa.key", "--service-account-signing-key-file=sa.key", "--service-account-issuer=https://kubebox.invalid",
			"--allow-privileged=true", "--service-cluster-ip-range=10.96.0.0/24", "--endpoint-reconciler-type=none",
			// The controller that removes the taint does not run here.
			"--disable-admission-plugins=TaintNodesByCondition"},
		Controller: {"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0",
			"--controllers=job-controller,garbage-collector-controller,pod-garbage-collector-controller,ttl-after-finished-controller,serviceaccount-controller,persistentvolume-binder-controller",
			"--service-account-private-key-file=sa.key", "--kube-api-qps=1000", "--kube-api-burst=2000", "--concurrent-job-syncs=10"},
		Scheduler: {"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=2000"},
	}
	if b.admin, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return nil, err
	}
	b.admin.QPS, b.admin.Burst = 2000, 4000
	if b.Client, err = kubeapi.New(b.admin); err != nil {
		return nil, err
	}
	for _, p := range []string{Etcd, APIServer, Controller, Scheduler} {
		if err := b.Start(ctx, p); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// Kubeconfig writes a kubeconfig file with a token, and returns its path.
func (b *Box) Kubeconfig(name, token, namespace string) (path string, err error) {
	c := clientcmdapi.NewConfig()
	c.Clusters["box"] = &clientcmdapi.Cluster{Server: b.URL, InsecureSkipTLSVerify: true} // the API server makes its certificate when it starts
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["box"] = &clientcmdapi.Context{Cluster: "box", AuthInfo: name, Namespace: namespace}
	c.CurrentContext = "box"
	path = filepath.Join(b.Dir, name+".kubeconfig")
	return path, clientcmd.WriteToFile(*c, path)
}

// Admin returns the path of a kubeconfig with all rights.
func (b *Box) Admin() string { return filepath.Join(b.Dir, "admin.kubeconfig") }

// Start starts a program that does not run, and returns when it is ready.
func (b *Box) Start(ctx context.Context, program string) error {
	path, err := binary(program)
	if err != nil {
		return err
	}
	if err := b.execute(program, &syscall.SysProcAttr{}, path, b.args[program]...); err != nil {
		return err
	}
	if program != APIServer {
		return nil
	}
	return b.await(ctx, program, func() (bool, error) {
		text, err := b.Client.Core.Get().AbsPath("/readyz").Timeout(10 * time.Second).DoRaw(ctx)
		return err == nil && string(text) == "ok", err
	})
}

// execute starts the process of a program.
func (b *Box) execute(program string, attr *syscall.SysProcAttr, path string, args ...string) error {
	log, err := os.OpenFile(filepath.Join(b.Dir, program+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = b.Dir, log, log
	attr.Pdeathsig, attr.Setpgid = syscall.SIGKILL, true
	cmd.SysProcAttr = attr
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that started the process ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // its log shows how it ended
		}
		_ = log.Close()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return err
	}
	b.mu.Lock()
	b.running[program] = p
	b.mu.Unlock()
	return nil
}

// await waits until a program is ready. If it does not become ready, its error wraps the
// last error of ready.
func (b *Box) await(ctx context.Context, program string, ready func() (bool, error)) error {
	b.mu.Lock()
	p := b.running[program]
	b.mu.Unlock()
	for until := time.Now().Add(startTime); ; {
		ok, err := ready()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
			return fmt.Errorf("%s ended:\n%s", program, b.logTail(program))
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(until) {
			return fmt.Errorf("%s is not ready (%w):\n%s", program, err, b.logTail(program))
		}
	}
}

// Kill kills a program and returns when it has ended.
func (b *Box) Kill(program string) {
	b.mu.Lock()
	p := b.running[program]
	delete(b.running, program)
	b.mu.Unlock()
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// CPU returns the processor time that a program has used so far.
func (b *Box) CPU(program string) (time.Duration, error) {
	b.mu.Lock()
	p := b.running[program]
	b.mu.Unlock()
	if p == nil {
		return 0, fmt.Errorf("%s does not run", program)
	}
	fields, err := proc.Stat(p.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	if len(fields) <= proc.System {
		return 0, fmt.Errorf("/proc/%d/stat is short", p.cmd.Process.Pid)
	}
	var user, system int64
	if _, err := fmt.Sscan(fields[proc.User]+" "+fields[proc.System], &user, &system); err != nil {
		return 0, err
	}
	const tick = time.Second / 100 // USER_HZ
	return time.Duration(user+system) * tick, nil
}

// logTail returns the end of a program's log.
func (b *Box) logTail(program string) []byte {
	text, _ := os.ReadFile(filepath.Join(b.Dir, program+".log")) // for a message only
	return text[max(0, len(text)-4096):]
}

// Close ends all programs.
func (b *Box) Close() {
	for i := len(b.closers) - 1; i >= 0; i-- {
		b.closers[i]()
	}
	for _, p := range []string{RealKubelet, Scheduler, Controller, APIServer, Etcd} {
		b.Kill(p)
	}
}

// Apply makes or changes an object of a YAML file as `kubectl apply --server-side` does.
// path is its collection, such as /api/v1/namespaces/default/pods, and its name. Unknown
// fields are an error.
func (b *Box) Apply(ctx context.Context, document []byte, path string) (warnings []string, err error) {
	client, err := rest.HTTPClientFor(b.admin)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, b.URL+path+"?fieldManager=kubebox&fieldValidation=Strict", bytes.NewReader(document))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/apply-patch+yaml")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		var text bytes.Buffer
		_, _ = text.ReadFrom(resp.Body) // for a message only
		return nil, fmt.Errorf("%s: %s: %s", path, resp.Status, &text)
	}
	return resp.Header.Values("Warning"), nil
}
