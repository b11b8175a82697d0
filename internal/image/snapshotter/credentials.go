package snapshotter

import (
	"encoding/base64"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"premix/internal/kit/login"
)

// credentials is the keychain of a snapshotter: credentials in calls of CRI, which the
// kubelet takes from the pull secrets of a pod, then those of this user's files.
type credentials struct {
	mu   sync.Mutex
	list map[string]authn.AuthConfig // by repository, the last ones
}

// credentialsMost limits the repositories with credentials. All are forgotten when there
// are more: the next pull brings its own.
const credentialsMost = 10000

// Resolve implements authn.Keychain.
func (c *credentials) Resolve(r authn.Resource) (authn.Authenticator, error) {
	if found, ok := c.find(r); ok {
		return login.New(found, "the request to pull the image"), nil
	}
	return login.Keychain{}.Resolve(r)
}

func (c *credentials) find(r authn.Resource) (authn.AuthConfig, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.list[r.String()]
	return found, ok
}

// note keeps the credentials of a request to pull an image. A request without some
// removes those of an earlier one, which belonged to another pod.
func (c *credentials) note(image string, auth authn.AuthConfig) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return // containerd refuses it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := ref.Context().String()
	if auth == (authn.AuthConfig{}) {
		delete(c.list, key)
		return
	}
	if c.list == nil || len(c.list) >= credentialsMost {
		c.list = map[string]authn.AuthConfig{}
	}
	c.list[key] = auth
}

// imageServices are the services of CRI that are passed on.
var imageServices = []string{"/runtime.v1.ImageService/", "/runtime.v1alpha2.ImageService/"}

// imageService passes calls of CRI's image service on to containerd, and notes the
// credentials in requests to pull an image. It passes all messages on as they are: as
// messages without known fields.
func (s *Snapshotter) imageService(socket string) (grpc.StreamHandler, func() error, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	return func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		known := false
		for _, service := range imageServices {
			known = known || strings.HasPrefix(method, service)
		}
		if !known {
			return status.Errorf(codes.Unimplemented, "unknown method %s", method)
		}
		var in, out emptypb.Empty
		if err := stream.RecvMsg(&in); err != nil {
			return err
		}
		if strings.HasSuffix(method, "/PullImage") {
			image, auth := pullRequest(in.ProtoReflect().GetUnknown())
			s.credentials.note(image, auth)
		}
		ctx := stream.Context()
		if md, ok := metadata.FromIncomingContext(ctx); ok {
			ctx = metadata.NewOutgoingContext(ctx, forwarded(md))
		}
		if err := conn.Invoke(ctx, method, &in, &out, grpc.WaitForReady(false)); err != nil {
			return err // with its status
		}
		return stream.SendMsg(&out)
	}, conn.Close, nil
}

// forwarded returns metadata without the fields that belong to one connection.
func forwarded(md metadata.MD) metadata.MD {
	out := md.Copy()
	for key := range out {
		if strings.HasPrefix(key, ":") || strings.HasPrefix(key, "grpc-") || key == "user-agent" || key == "content-type" {
			delete(out, key)
		}
	}
	return out
}

// pullRequest returns the image and the credentials of a PullImageRequest
// (https://github.com/kubernetes/cri-api).
func pullRequest(message []byte) (image string, auth authn.AuthConfig) {
	fields(message, func(number protowire.Number, value []byte) {
		switch number {
		case 1: // ImageSpec
			fields(value, func(number protowire.Number, value []byte) {
				if number == 1 {
					image = string(value)
				}
			})
		case 2: // AuthConfig
			fields(value, func(number protowire.Number, value []byte) {
				to := map[protowire.Number]*string{1: &auth.Username, 2: &auth.Password, 3: &auth.Auth, 5: &auth.IdentityToken, 6: &auth.RegistryToken}[number]
				if to != nil {
					*to = string(value)
				}
			})
		}
	})
	if user, password, ok := decodeAuth(auth.Auth); ok && auth.Username == "" {
		auth.Username, auth.Password = user, password
	}
	auth.Auth = ""
	return image, auth
}

// decodeAuth decodes a user and a password, as files of docker have them.
func decodeAuth(text string) (user, password string, ok bool) {
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", "", false
	}
	return strings.Cut(string(raw), ":")
}

// fields calls f with the fields of a message that have a length.
func fields(message []byte, f func(protowire.Number, []byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		if kind == protowire.BytesType {
			value, n := protowire.ConsumeBytes(message)
			if n < 0 {
				return
			}
			f(number, value)
			message = message[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return
		}
		message = message[n:]
	}
}
