// SPDX-License-Identifier: MPL-2.0

package runtime

// Container is what a generation's processes run in.
type Container struct {
	// Name begins the container's name and is the task's own; the generation follows.
	Name string
	// Image is a reference such as "ghcr.io/team/train:v3"; Pull asks for its
	// newest even where the node has it.
	Image string
	Pull  bool
	// Auth is for the image's registry; nil: what the engine's configuration
	// file says. It is written nowhere.
	Auth *Auth `json:"-"`
	// Entrypoint replaces the image's; the Spec's command and arguments follow
	// it, or the image's where the Spec has none.
	Entrypoint []string
	// GPUs are the reserved ones by UUID.
	GPUs []string
	// Mounts are shown inside, in this order.
	Mounts []Mount
	// Devices are nodes of the host's beside the GPUs'.
	Devices []Device
	// ShmBytes is the size of /dev/shm, at most what the memory limit is.
	ShmBytes int64
	// CapAdd and CapDrop are capabilities such as "IPC_LOCK".
	CapAdd, CapDrop []string
	Privileged      bool
	ReadonlyRootfs  bool
	// ExtraHosts are lines of the hosts file, "name:address".
	ExtraHosts []string
	// DNS takes the place of the host's resolver; nil: the host's.
	DNS    *DNS
	Labels map[string]string
}

// Auth is a registry's login.
type Auth struct{ Username, Password, Server string }

// Mount shows a file or directory of the host's at Target.
type Mount struct {
	Source, Target string
	ReadOnly       bool
	// Propagation is "private", "host-to-task" or "bidirectional", as Nomad
	// says; empty: private.
	Propagation string
}

// Device shows a device node of the host's at Target.
type Device struct {
	Source, Target string
	// Permissions are some of "rwm".
	Permissions string
}

// DNS is what /etc/resolv.conf says (resolv.conf(5)).
type DNS struct{ Servers, Searches, Options []string }
