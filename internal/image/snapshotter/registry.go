package snapshotter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"premix/internal/image"
	"premix/internal/image/lazylayer"
)

// Labels by which containerd describes the image of a layer.
const (
	imageLabel    = "containerd.io/snapshot/cri.image-ref"
	manifestLabel = "containerd.io/snapshot/cri.manifest-digest"

	tocAnnotation = "containerd.io/snapshot/stargz/toc.digest"
)

const (
	partLeast   = 128 << 10 // of a request for a part of a layer
	partMost    = 8 << 20   // likewise
	layerMost   = 1 << 40   // of a layer: the memory for its parts is allocated at once
	connections = 8         // concurrent requests for an image
	idleTime    = time.Minute
	documents   = 15 * time.Second // for a login, the manifest or the configuration
	answers     = 2 * time.Second  // for a document from containerd
	silentFor   = 5 * time.Minute  // for which a registry that did not answer is not asked
	manifestMax = 16 << 20
)

// unpackers is the number of layers of an image that are unpacked at the same time.
func unpackers() int { return min(4, max(2, runtime.NumCPU())) }

// registries gets the layers that no store has from the registries of their images.
type registries struct {
	dir      string // directory for layers that are being fetched
	keychain authn.Keychain
	// containerd is its socket; "" if it is not asked for documents of images.
	containerd string
	indexed    bool // layers with an index are mounted
	log        *slog.Logger

	mu     sync.Mutex
	pulls  map[string]*pull     // by image and manifest
	silent map[string]time.Time // registries that are not asked before a time
	last   int
}

// pull is an image whose layers are fetched. It ends some time after its last use.
type pull struct {
	r       *registries
	key     string
	image   name.Digest
	space   string // namespace of containerd in which the image is pulled
	dir     string
	ctx     context.Context
	end     context.CancelFunc
	miss    sync.Once
	missed  chan struct{} // closed when a layer is needed that no store has
	ready   chan struct{} // closed when the fields below are set
	err     error
	repo    *lazylayer.Repository
	layers  []*pulledLayer
	running sync.WaitGroup

	begin sync.Once // of fetching layers
	users int       // under registries.mu
	idle  *time.Timer
}

// pulledLayer is a layer of a pull.
type pulledLayer struct {
	pull          *pull
	number        int
	desc          v1.Descriptor
	diffID, chain string

	alone sync.Once  // fetching a layer whose index cannot be used
	mu    sync.Mutex // held while it becomes a snapshot
	file  *os.File   // the blob, while it is fetched
	part  int64      // size of a part; the last one may be smaller
	parts []chan struct{}
	once  sync.Once
	bad   chan struct{} // closed if a part cannot be fetched
	cause error         // then
	done  chan struct{} // closed when the fields below are set
	err   error
	leans bool // it has to be unpacked again, on top of the layers below
}

// layer returns a layer of an image by its chain id, and a function that ends its use.
// Without labels that name the image, or if the image does not have it, both are nil.
func (r *registries) layer(ctx context.Context, labels map[string]string, chain string) (*pulledLayer, func(), error) {
	p, err := r.pullOf(ctx, labels)
	if p == nil {
		return nil, nil, err
	}
	p.miss.Do(func() { close(p.missed) })
	leave := func() { r.leave(p) }
	select {
	case <-p.ready:
	case <-ctx.Done():
		leave()
		return nil, nil, ctx.Err()
	}
	if p.err != nil {
		leave()
		return nil, nil, p.err
	}
	for _, l := range p.layers {
		if l.chain == chain {
			return l, leave, nil
		}
	}
	leave()
	return nil, nil, fmt.Errorf("the image %s has no layer with the chain id %s", p.image, chain)
}

// ahead connects and logs in to the registry of an image, while the store is asked for a layer.
// It returns a function that ends the use of the image.
func (r *registries) ahead(ctx context.Context, labels map[string]string) (leave func()) {
	p, err := r.pullOf(ctx, labels)
	if p == nil || err != nil {
		return func() {} // layer returns the error
	}
	return func() { r.leave(p) }
}

// pullOf returns the pull of an image by its labels, for which the caller must call leave.
// Without labels that name the image, it is nil.
func (r *registries) pullOf(ctx context.Context, labels map[string]string) (*pull, error) {
	if r == nil || labels[imageLabel] == "" || labels[manifestLabel] == "" {
		return nil, nil
	}
	ref, err := name.ParseReference(labels[imageLabel])
	if err != nil {
		return nil, err
	}
	manifest, err := name.NewDigest(ref.Context().Name() + "@" + labels[manifestLabel])
	if err != nil {
		return nil, err
	}
	host := manifest.RegistryStr()
	r.mu.Lock()
	silent := time.Now().Before(r.silent[host])
	r.mu.Unlock()
	if silent {
		return nil, fmt.Errorf("the registry %s has not answered, and is not asked for a while", host)
	}
	space, _ := namespaces.Namespace(ctx)
	return r.use(manifest, space), nil
}

// use returns the pull of an image, and begins it if there is none.
func (r *registries) use(manifest name.Digest, space string) *pull {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := manifest.String()
	p := r.pulls[key]
	if p == nil {
		r.last++
		p = &pull{r: r, key: key, image: manifest, space: space, dir: filepath.Join(r.dir, strconv.Itoa(r.last)), missed: make(chan struct{}), ready: make(chan struct{})}
		p.ctx, p.end = context.WithCancel(context.Background())
		r.pulls[key] = p
		p.running.Go(func() {
			defer close(p.ready)
			p.err = p.open()
		})
	}
	if p.idle != nil {
		p.idle.Stop()
	}
	p.users++
	return p
}

func (r *registries) leave(p *pull) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	failed := false
	select {
	case <-p.ready:
		failed = p.err != nil
	default:
	}
	if failed { // the next pull may have other credentials
		delete(r.pulls, p.key)
	} else {
		p.idle = time.AfterFunc(idleTime, func() {
			r.mu.Lock()
			unused := p.users == 0 && r.pulls[p.key] == p
			if unused {
				delete(r.pulls, p.key)
			}
			r.mu.Unlock()
			if unused {
				p.close()
			}
		})
	}
}

func (p *pull) close() {
	p.end()
	p.running.Wait()
	for _, l := range p.layers {
		if l.file != nil {
			_ = l.file.Close() // it is removed
		}
	}
	if err := os.RemoveAll(p.dir); err != nil {
		p.r.log.Error("remove layers that were fetched", "error", err)
	}
}

// close ends all pulls.
func (r *registries) close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	var all []*pull
	for key, p := range r.pulls {
		if p.idle != nil {
			p.idle.Stop()
		}
		all = append(all, p)
		delete(r.pulls, key)
	}
	r.mu.Unlock()
	for _, p := range all {
		p.close()
	}
}

// open logs in to the registry, and meanwhile reads the manifest and the configuration of the
// image.
func (p *pull) open() (err error) {
	defer func() {
		if err != nil {
			if unanswered(err) {
				p.r.silence(p.image.RegistryStr())
			}
			err = image.RemoteError(p.ctx, p.image.Context(), p.image.String(), err)
		}
	}()
	if p.repo, err = lazylayer.NewRepository(p.image.Context().Name(), p.r.keychain); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(p.ctx)
	g.Go(func() error {
		ctx, cancel := context.WithTimeout(ctx, documents)
		defer cancel()
		return p.repo.Login(ctx)
	})
	g.Go(func() error { return p.describe(ctx) })
	return g.Wait()
}

// describe reads the manifest and the configuration, and verifies them.
func (p *pull) describe(ctx context.Context) error {
	manifest, err := p.document(ctx, "manifest", p.image.DigestStr(), func(ctx context.Context) ([]byte, error) {
		return p.repo.Manifest(ctx, p.image.DigestStr(), manifestMax)
	})
	if err != nil {
		return err
	}
	m, err := v1.ParseManifest(bytes.NewReader(manifest))
	if err != nil {
		return err
	}
	if m.Config.Size > manifestMax {
		return fmt.Errorf("its configuration has %d bytes", m.Config.Size)
	}
	config, err := p.document(ctx, "configuration", m.Config.Digest.String(), func(ctx context.Context) ([]byte, error) {
		var b bytes.Buffer
		err := p.repo.Range(ctx, m.Config.Digest.String(), m.Config.Size, 0, m.Config.Size, &b)
		return b.Bytes(), err
	})
	if err != nil {
		return err
	}
	ids, err := image.DiffIDs(config, len(m.Layers))
	if err != nil {
		return err
	}
	chains := image.ChainIDs(ids)
	for i, d := range m.Layers {
		l := &pulledLayer{pull: p, number: i, desc: d, diffID: ids[i], chain: chains[i], bad: make(chan struct{}), done: make(chan struct{})}
		var parts int64
		if l.part, parts, err = divide(d.Size); err != nil {
			return err
		}
		for range parts {
			l.parts = append(l.parts, make(chan struct{}))
		}
		p.layers = append(p.layers, l)
	}
	return nil
}

// divide returns the size and the number of the parts in which a layer is fetched. All
// connections begin slowly (RFC 5681), so a small layer arrives sooner over many of them too.
func divide(size int64) (part, parts int64, err error) {
	if size < 0 || size > layerMost {
		return 0, 0, fmt.Errorf("a layer of it has %d bytes", size)
	}
	part = min(partMost, max(partLeast, (size+connections-1)/connections))
	return part, (size + part - 1) / part, nil
}

// document reads a document of the image by its digest from containerd, which fetched it
// before it asked for layers. If containerd does not return it, document reads it from the
// registry as soon as a layer is needed from there.
func (p *pull) document(ctx context.Context, kind, digest string, fromRegistry func(context.Context) ([]byte, error)) ([]byte, error) {
	if content, err := p.fromContainerd(ctx, digest); err == nil && sha256Of(content) == digest {
		return content, nil
	}
	select {
	case <-p.missed:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, documents)
	defer cancel()
	content, err := fromRegistry(ctx)
	if err == nil && sha256Of(content) != digest {
		err = fmt.Errorf("its %s does not match its digest", kind)
	}
	return content, err
}

func sha256Of(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// fromContainerd reads content from containerd's content store.
func (p *pull) fromContainerd(ctx context.Context, digest string) (content []byte, err error) {
	if p.r.containerd == "" || p.space == "" {
		return nil, errdefs.ErrUnavailable
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, p.space), answers)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+p.r.containerd, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := contentapi.NewContentClient(conn).Read(ctx, &contentapi.ReadContentRequest{Digest: digest})
	if err != nil {
		return nil, err
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return content, nil
		}
		if err != nil {
			return nil, err
		}
		if content = append(content, part.Data...); len(content) > manifestMax {
			return nil, fmt.Errorf("%s has more than %d bytes", digest, manifestMax)
		}
	}
}

// unanswered reports whether an error means that a registry cannot be reached.
func unanswered(err error) bool {
	var answer *transport.Error
	var network net.Error
	return !errors.As(err, &answer) && (errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF))
}

// silence makes a registry not be asked for a while: containerd may have a mirror for it.
func (r *registries) silence(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent[host] = time.Now().Add(silentFor)
}

// description returns the description with which the layer can be shown before it is
// fetched, or nil.
func (l *pulledLayer) description() *lazylayer.Description {
	toc := l.desc.Annotations[tocAnnotation]
	if toc == "" {
		return nil
	}
	d := &lazylayer.Description{Repository: l.pull.image.Context().Name(), Digest: l.desc.Digest.String(), Size: l.desc.Size, TOC: toc}
	if d.Check() != nil {
		return nil
	}
	return d
}

// layerTypes are the media types of layers that can be unpacked.
var layerTypes = []string{
	"application/vnd.oci.image.layer.v1.tar", "application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.oci.image.layer.v1.tar+zstd",
	"application/vnd.docker.image.rootfs.diff.tar", "application/vnd.docker.image.rootfs.diff.tar.gzip", "application/vnd.docker.image.rootfs.diff.tar.zstd",
}

// path returns the directory of the unpacked layer.
func (l *pulledLayer) path() string { return filepath.Join(l.pull.dir, strconv.Itoa(l.number)) }

func (l *pulledLayer) blobPath() string { return l.path() + ".blob" }

// fetch fetches and unpacks this layer and all layers above it that have no index, in
// parallel, and waits for this one.
func (l *pulledLayer) fetch(ctx context.Context) error {
	p := l.pull
	if l.description() != nil {
		l.alone.Do(func() { p.running.Go(func() { p.fetch([]*pulledLayer{l}) }) })
	} else {
		p.begin.Do(func() { p.running.Go(func() { p.fetch(p.plain(l.number)) }) })
	}
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// plain returns the layers without an index from a number on. The layers below are not
// waited for.
func (p *pull) plain(from int) (list []*pulledLayer) {
	for _, l := range p.layers {
		switch {
		case l.description() != nil:
		case l.number < from:
			l.finish(errors.New("layers above it were requested first"))
		default:
			list = append(list, l)
		}
	}
	return list
}

// fetch fetches and unpacks layers.
func (p *pull) fetch(layers []*pulledLayer) {
	failed := os.MkdirAll(p.dir, 0o700)
	var wanted []*pulledLayer
	for _, l := range layers {
		err := failed
		if !slices.Contains(layerTypes, string(l.desc.MediaType)) || len(l.desc.URLs) > 0 || l.desc.Size <= 0 {
			err = fmt.Errorf("its type is %s", l.desc.MediaType)
		}
		if err == nil {
			l.file, err = os.OpenFile(l.blobPath(), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
		}
		if err != nil {
			l.finish(err)
			continue
		}
		wanted = append(wanted, l)
	}
	var unpacking, fetching errgroup.Group
	fetching.SetLimit(connections)
	slots := make(chan struct{}, unpackers())
	for _, l := range wanted {
		unpacking.Go(func() error {
			slots <- struct{}{}
			defer func() { <-slots }()
			l.finish(l.unpack(p.ctx, ""))
			return nil
		})
	}
	for _, l := range wanted {
		for i := range l.parts {
			fetching.Go(func() error {
				if err := l.fetchPart(i); err != nil {
					l.spoil(err)
				}
				return nil
			})
		}
	}
	_ = fetching.Wait()  // errors belong to layers
	_ = unpacking.Wait() // likewise
}

// fetchPart fetches a part of the blob.
func (l *pulledLayer) fetchPart(i int) error {
	select {
	case <-l.bad:
		return nil
	default:
	}
	from, to := int64(i)*l.part, min(l.desc.Size, int64(i+1)*l.part)
	if err := l.pull.repo.Range(l.pull.ctx, l.desc.Digest.String(), l.desc.Size, from, to, io.NewOffsetWriter(l.file, from)); err != nil {
		return err
	}
	close(l.parts[i])
	return nil
}

func (l *pulledLayer) spoil(err error) {
	l.once.Do(func() {
		l.cause = err
		close(l.bad)
	})
}

// finish ends the wait for the layer.
func (l *pulledLayer) finish(err error) {
	l.err = err
	close(l.done)
}

// unpack unpacks the layer while its parts arrive, and verifies it.
func (l *pulledLayer) unpack(ctx context.Context, parent string) error {
	dir := l.path()
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
		return err
	}
	applied, err := image.Unpack(ctx, image.Blob{
		Digest: l.desc.Digest.String(), DiffID: l.diffID, Size: l.desc.Size,
		Open: func() (io.ReadCloser, error) { return io.NopCloser(&arriving{l: l}), nil },
	}, dir, parent)
	// Without the layers below a hard link to one of them fails.
	var bad *image.Error
	if errors.As(err, &bad) && bad.Kind == image.Damaged && parent == "" && l.number > 0 && l.whole() {
		l.leans = true
		return nil
	}
	if err != nil {
		return err
	}
	if l.leans = applied.Leans && parent == "" && l.number > 0; !l.leans {
		return l.drop()
	}
	return nil
}

// whole reports whether the blob in the file matches its digest.
func (l *pulledLayer) whole() bool {
	h := sha256.New()
	_, err := io.Copy(h, &arriving{l: l})
	return err == nil && l.desc.Digest.String() == "sha256:"+hex.EncodeToString(h.Sum(nil))
}

// drop removes the blob, whose layer is unpacked.
func (l *pulledLayer) drop() error {
	return errors.Join(l.file.Close(), os.Remove(l.blobPath()))
}

// arriving reads a blob whose parts are being fetched.
type arriving struct {
	l  *pulledLayer
	at int64
}

func (a *arriving) Read(p []byte) (int, error) {
	l := a.l
	if a.at >= l.desc.Size {
		return 0, io.EOF
	}
	i := a.at / l.part
	select {
	case <-l.parts[i]:
	default:
		select {
		case <-l.parts[i]:
		case <-l.bad:
			return 0, l.cause
		case <-l.pull.ctx.Done():
			return 0, context.Cause(l.pull.ctx)
		}
	}
	n, err := l.file.ReadAt(p[:min(int64(len(p)), min(l.desc.Size, (i+1)*l.part)-a.at)], a.at)
	a.at += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}
