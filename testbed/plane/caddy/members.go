package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// A source of upstreams that changes without a new configuration. Caddy restarts its HTTP servers with each new
// configuration, and then cuts idle connections and requests that it is just reading. This module keeps the members of
// all groups in memory; they are read and replaced at /operating/members of the admin API.
func init() {
	caddy.RegisterModule(Members{})
	caddy.RegisterModule(membersAPI{})
}

type member struct {
	ID       string `json:"id"`
	Dial     string `json:"dial"`
	Weight   int    `json:"weight"`
	Draining bool   `json:"draining"`
}

var store = struct {
	sync.RWMutex
	groups map[string][]member
	// Differs after a restart, so that an old version never fits.
	version int64
}{groups: map[string][]member{}, version: time.Now().UnixNano()}

// Members chooses a member of a group that does not drain, at random by its weight.
type Members struct {
	Group string `json:"group"`
}

func (Members) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.upstreams.operating_members",
		New: func() caddy.Module { return new(Members) },
	}
}

func (m *Members) GetUpstreams(*http.Request) ([]*reverseproxy.Upstream, error) {
	store.RLock()
	defer store.RUnlock()
	total := 0
	for _, member := range store.groups[m.Group] {
		if !member.Draining {
			total += member.Weight
		}
	}
	if total == 0 {
		return nil, nil
	}
	at := rand.IntN(total)
	for _, member := range store.groups[m.Group] {
		if member.Draining {
			continue
		}
		if at -= member.Weight; at < 0 {
			return []*reverseproxy.Upstream{{Dial: member.Dial}}, nil
		}
	}
	return nil, nil
}

type membersAPI struct{}

func (membersAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.operating_members",
		New: func() caddy.Module { return new(membersAPI) },
	}
}

func (membersAPI) Routes() []caddy.AdminRoute {
	handler := caddy.AdminHandlerFunc(serveMembers)
	return []caddy.AdminRoute{{Pattern: "/operating/members", Handler: handler}}
}

func serveMembers(w http.ResponseWriter, r *http.Request) error {
	refuse := func(status int, err error) error { return caddy.APIError{HTTPStatus: status, Err: err} }
	switch r.Method {
	case http.MethodGet:
		store.RLock()
		defer store.RUnlock()
		w.Header().Set("Etag", etag())
		return json.NewEncoder(w).Encode(store.groups)
	case http.MethodPost:
		groups := map[string][]member{}
		decoder := json.NewDecoder(r.Body)
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&groups); err != nil {
			return refuse(http.StatusBadRequest, err)
		}
		for _, members := range groups {
			for _, member := range members {
				if member.Weight < 1 || member.Dial == "" {
					return refuse(http.StatusBadRequest, fmt.Errorf("%q needs a dial and a weight from 1", member.ID))
				}
			}
		}
		store.Lock()
		defer store.Unlock()
		if r.Header.Get("If-Match") != etag() {
			return refuse(http.StatusPreconditionFailed, fmt.Errorf("the members have changed"))
		}
		store.groups = groups
		store.version++
		return nil
	}
	return refuse(http.StatusMethodNotAllowed, fmt.Errorf("use GET or POST"))
}

func etag() string { return fmt.Sprintf("%q", fmt.Sprint(store.version)) }

var _ reverseproxy.UpstreamSource = (*Members)(nil)
