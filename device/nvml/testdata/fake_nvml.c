// SPDX-License-Identifier: MPL-2.0
//
// A stand-in for libnvidia-ml.so.1. It is driven by a text file, named by the
// environment variable FAKE_NVML_STATE, that is read anew at every call:
//
//   gpus 8                      how many there are
//   links switch 18             18 links of each GPU into switches; or
//   links pairs 12              12 links between GPUs 0 and 1, 2 and 3, …; or
//   links hidden 18             18 links to an end that the guest may not see
//   error FUNCTION GPU CODE     what FUNCTION answers for GPU (* for all)
//   driver 550.54.15            the driver's version
//   xid GPU NUMBER SERIAL       an Xid; delivered once for each serial number
//   mig GPU N                   N MIG instances of that GPU, MIG being on
//   fabric STATE STATUS CLIQUE  the NVLink fabric over several machines
//   health GPU UNCORRECTED ROWS PENDING FAILED SLOWDOWN RECOVERY
//
// Structures and numbers follow NVIDIA's NVML API reference.
// With OLD it is a driver of 2018, without the functions that came later; with
// EMPTY it has no function at all.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3 };
enum { MAX_GPUS = 16, MAX_LINKS = 18 };

typedef struct { int index, instance; } device; // instance counts from 1; 0 is the whole GPU
typedef struct {
	char bus_id_legacy[16];
	unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
} pci_info;
typedef struct { unsigned long long a, b, c; } three;
typedef struct { unsigned gpu, memory; } utilization;

#ifndef EMPTY

static device devices[MAX_GPUS];

// find reads the state up to the first line that begins with key, and gives
// what follows it.
static int find(const char *key, char *rest, size_t size) {
	const char *name = getenv("FAKE_NVML_STATE");
	FILE *file = name ? fopen(name, "r") : NULL;
	char line[256];
	size_t length = strlen(key);
	int found = 0;
	while (file && !found && fgets(line, sizeof line, file)) {
		if (strncmp(line, key, length) == 0 && line[length] == ' ') {
			snprintf(rest, size, "%s", line + length + 1);
			rest[strcspn(rest, "\n")] = 0;
			found = 1;
		}
	}
	if (file) fclose(file);
	return found;
}

// answer is what the state wants this function to say.
static int answer(const char *function, int gpu) {
	const char *name = getenv("FAKE_NVML_STATE");
	FILE *file = name ? fopen(name, "r") : NULL;
	char line[256], wanted[128], which[16];
	int code, result = SUCCESS;
	while (file && fgets(line, sizeof line, file)) {
		if (sscanf(line, "error %127s %15s %d", wanted, which, &code) == 3 && strcmp(wanted, function) == 0 &&
		    (strcmp(which, "*") == 0 || atoi(which) == gpu)) {
			result = code;
		}
	}
	if (file) fclose(file);
	return result;
}

#define ASK(gpu) do { int code = answer(__func__, gpu); if (code != SUCCESS) return code; } while (0)

static unsigned gpus(void) {
	char text[64] = "0";
	find("gpus", text, sizeof text);
	unsigned n = (unsigned)atoi(text);
	return n > MAX_GPUS ? MAX_GPUS : n;
}

static unsigned links(const char **shape) {
	static char text[64];
	char kind[32] = "none";
	unsigned n = 0;
	if (find("links", text, sizeof text)) sscanf(text, "%31s %u", kind, &n);
	snprintf(text, sizeof text, "%s", kind);
	*shape = text;
	return n;
}

static void fill_pci(pci_info *pci, unsigned bus) {
	memset(pci, 0, sizeof *pci);
	pci->bus = bus;
	snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", bus);
	snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "0000:%02X:00.0", bus);
}

int nvmlInit_v2(void) { ASK(-1); return SUCCESS; }
int nvmlShutdown(void) { ASK(-1); return SUCCESS; }

const char *nvmlErrorString(int code) {
	switch (code) {
	case 3: return "Not Supported";
	case 9: return "Driver Not Loaded";
	case 15: return "GPU is lost";
	case 18: return "Driver/library version mismatch";
	default: return "some error";
	}
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
	ASK(-1);
	char text[64] = "550.54.15";
	find("driver", text, sizeof text);
	snprintf(version, length, "%s", text);
	return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) { ASK(-1); *count = gpus(); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **d) {
	ASK((int)index);
	if (index >= gpus()) return INVALID_ARGUMENT;
	devices[index].index = (int)index;
	*d = &devices[index];
	return SUCCESS;
}

int nvmlDeviceGetUUID(device *d, char *uuid, unsigned length) {
	ASK(d->index);
	if (d->instance > 0) {
		snprintf(uuid, length, "MIG-00000000-0000-0000-%04d-%012d", d->instance, d->index);
		return SUCCESS;
	}
	snprintf(uuid, length, "GPU-00000000-0000-0000-0000-%012d", d->index);
	return SUCCESS;
}

int nvmlDeviceGetName(device *d, char *name, unsigned length) {
	ASK(d->index);
	snprintf(name, length, "NVIDIA H100 80GB HBM3%s", d->instance > 0 ? " MIG 1g.10gb" : "");
	return SUCCESS;
}

#ifdef OLD
int nvmlDeviceGetPciInfo_v2(device *d, pci_info *pci) {
#else
int nvmlDeviceGetPciInfo_v3(device *d, pci_info *pci) {
#endif
	ASK(d->index);
	fill_pci(pci, 0x10 + (unsigned)d->index);
	return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device *d, three *memory) {
	ASK(d->index);
	if (d->instance > 0) {
		memory->a = 9856ull << 20, memory->b = 9840ull << 20, memory->c = 16ull << 20;
		return SUCCESS;
	}
	memory->a = 81559ull << 20, memory->b = 81000ull << 20, memory->c = 559ull << 20; // total, free, used
	return SUCCESS;
}

int nvmlDeviceGetBAR1MemoryInfo(device *d, three *memory) {
	ASK(d->index);
	memory->a = 131072ull << 20, memory->b = 131070ull << 20, memory->c = 2ull << 20;
	return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(device *d, int kind, unsigned *mhz) {
	ASK(d->index);
	*mhz = kind == 1 ? 1980 : 2619; // 1 is NVML_CLOCK_SM
	return SUCCESS;
}

static unsigned limits[MAX_GPUS]; // in mW; 0: as delivered
int nvmlDeviceGetPowerManagementLimit(device *d, unsigned *mw) { ASK(d->index); *mw = limits[d->index] ? limits[d->index] : 700000; return SUCCESS; }
int nvmlDeviceGetPowerManagementLimitConstraints(device *d, unsigned *least, unsigned *most) { ASK(d->index); *least = 200000, *most = 700000; return SUCCESS; }
int nvmlDeviceSetPowerManagementLimit(device *d, unsigned mw) { ASK(d->index); limits[d->index] = mw; return SUCCESS; }
int nvmlDeviceGetMaxPcieLinkGeneration(device *d, unsigned *g) { ASK(d->index); *g = 5; return SUCCESS; }
int nvmlDeviceGetMaxPcieLinkWidth(device *d, unsigned *w) { ASK(d->index); *w = 16; return SUCCESS; }
int nvmlDeviceGetDisplayMode(device *d, int *mode) { ASK(d->index); *mode = 0; return SUCCESS; }
int nvmlDeviceGetPersistenceMode(device *d, int *mode) { ASK(d->index); *mode = 1; return SUCCESS; }

int nvmlDeviceGetCudaComputeCapability(device *d, int *major, int *minor) {
	ASK(d->index);
	*major = 9, *minor = 0;
	return SUCCESS;
}

int nvmlDeviceGetTopologyCommonAncestor(device *a, device *b, int *level) {
	ASK(a->index);
	*level = a->index / 4 == b->index / 4 ? 40 : 50; // NODE within four, SYS across
	return SUCCESS;
}

int nvmlDeviceGetNvLinkState(device *d, unsigned link, int *up) {
	ASK(d->index);
	const char *shape;
	if (link >= MAX_LINKS) return INVALID_ARGUMENT;
	unsigned n = links(&shape);
	if (strcmp(shape, "none") == 0) return NOT_SUPPORTED;
	*up = link < n;
	return SUCCESS;
}

int nvmlDeviceGetNvLinkVersion(device *d, unsigned link, unsigned *version) {
	(void)link;
	ASK(d->index);
	*version = 6; // NVML_NVLINK_VERSION_4_0
	return SUCCESS;
}

static int remote(device *d, pci_info *pci) {
	const char *shape;
	links(&shape);
	if (strcmp(shape, "pairs") == 0) {
		fill_pci(pci, 0x10 + ((unsigned)d->index ^ 1u));
	} else if (strcmp(shape, "hidden") == 0) {
		memset(pci, 0, sizeof *pci);
		snprintf(pci->bus_id, sizeof pci->bus_id, "FFFFFFFF:FF:FF.0");
	} else {
		fill_pci(pci, 0xf3);
	}
	return SUCCESS;
}

#ifdef OLD
int nvmlDeviceGetNvLinkRemotePciInfo(device *d, unsigned link, pci_info *pci) {
#else
int nvmlDeviceGetNvLinkRemotePciInfo_v2(device *d, unsigned link, pci_info *pci) {
#endif
	(void)link;
	ASK(d->index);
	return remote(d, pci);
}

int nvmlDeviceGetUtilizationRates(device *d, utilization *use) {
	ASK(d->index);
	if (d->instance > 0) return NOT_SUPPORTED;
	use->gpu = 42, use->memory = 7;
	return SUCCESS;
}

int nvmlDeviceGetEncoderUtilization(device *d, unsigned *use, unsigned *period) { ASK(d->index); *use = 1, *period = 1000; return SUCCESS; }
int nvmlDeviceGetDecoderUtilization(device *d, unsigned *use, unsigned *period) { ASK(d->index); *use = 2, *period = 1000; return SUCCESS; }
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *celsius) { (void)sensor; ASK(d->index); *celsius = 35; return SUCCESS; }
int nvmlDeviceGetPowerUsage(device *d, unsigned *mw) { ASK(d->index); *mw = 120500; return SUCCESS; }

int nvmlDeviceGetTotalEnergyConsumption(device *d, unsigned long long *mj) { ASK(d->index); *mj = 5000123; return SUCCESS; }
int nvmlDeviceGetClockInfo(device *d, int kind, unsigned *mhz) { ASK(d->index); *mhz = kind == 1 ? 345 : 1593; return SUCCESS; }
int nvmlDeviceGetPcieThroughput(device *d, int counter, unsigned *kbps) { ASK(d->index); *kbps = counter == 0 ? 12000 : 34000; return SUCCESS; }

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *count, process *all) {
	ASK(d->index);
	if (*count < 2) { *count = 2; return 7; } // too small
	memset(all, 0, 2 * sizeof *all);
	all[0].pid = 100, all[1].pid = 200, *count = 2;
	return SUCCESS;
}

int nvmlDeviceGetMemoryErrorCounter(device *d, int kind, int counter, int place, unsigned long long *count) {
	(void)counter;
	ASK(d->index);
	*count = kind == 0 ? 3 : place == 2 ? 1 : 0; // three corrected everywhere, one not corrected in memory
	return SUCCESS;
}

// A GPU's line of health; zeroes where there is none.
static void vitals(int gpu, unsigned v[6]) {
	const char *name = getenv("FAKE_NVML_STATE");
	FILE *file = name ? fopen(name, "r") : NULL;
	char line[256];
	memset(v, 0, 6 * sizeof v[0]);
	while (file && fgets(line, sizeof line, file)) {
		int which;
		unsigned w[6];
		if (sscanf(line, "health %d %u %u %u %u %u %u", &which, &w[0], &w[1], &w[2], &w[3], &w[4], &w[5]) == 7 && which == gpu) {
			memcpy(v, w, sizeof w);
		}
	}
	if (file) fclose(file);
}

int nvmlDeviceGetRetiredPagesPendingStatus(device *d, int *pending) { ASK(d->index); *pending = 0; return SUCCESS; }

int nvmlDeviceGetTotalEccErrors(device *d, int kind, int counter, unsigned long long *count) {
	unsigned v[6];
	(void)counter;
	ASK(d->index);
	vitals(d->index, v);
	*count = kind == 1 ? v[0] : 0; // 1 is "uncorrected"
	return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, unsigned long long *reasons) {
	unsigned v[6];
	ASK(d->index);
	vitals(d->index, v);
	*reasons = v[4];
	return SUCCESS;
}

typedef struct { device *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event;
typedef struct { unsigned long long types[MAX_GPUS]; } event_set;
static event_set events;
static int delivered; // the highest serial number so far

int nvmlEventSetCreate(event_set **set) { ASK(-1); memset(&events, 0, sizeof events); *set = &events; return SUCCESS; }
int nvmlDeviceRegisterEvents(device *d, unsigned long long types, event_set *set) { ASK(d->index); set->types[d->index] = types; return SUCCESS; }

int nvmlEventSetWait_v2(event_set *set, event *e, unsigned timeout) {
	const char *name = getenv("FAKE_NVML_STATE");
	char line[256];
	int gpu, xid, serial, found = 0;
	(void)timeout;
	ASK(-1);
	FILE *file = name ? fopen(name, "r") : NULL;
	while (file && !found && fgets(line, sizeof line, file)) {
		if (sscanf(line, "xid %d %d %d", &gpu, &xid, &serial) == 3 && serial > delivered && gpu >= 0 && gpu < MAX_GPUS) {
			delivered = serial;
			found = (set->types[gpu] & 8) != 0; // 8 is "critical Xid"
		}
	}
	if (file) fclose(file);
	if (!found) return 10; // time-out
	memset(e, 0, sizeof *e);
	e->device = &devices[gpu], e->type = 8, e->data = (unsigned long long)xid;
	return SUCCESS;
}

#ifdef OLD
int nvmlSystemGetCudaDriverVersion(int *version) { ASK(-1); *version = 10010; return SUCCESS; }
#else
int nvmlSystemGetCudaDriverVersion_v2(int *version) { ASK(-1); *version = 12040; return SUCCESS; }
int nvmlDeviceGetArchitecture(device *d, unsigned *architecture) { ASK(d->index); *architecture = 9; return SUCCESS; }

static int instances(int gpu) {
	const char *name = getenv("FAKE_NVML_STATE");
	FILE *file = name ? fopen(name, "r") : NULL;
	char line[256];
	int which, n, count = -1;
	while (file && fgets(line, sizeof line, file)) {
		if (sscanf(line, "mig %d %d", &which, &n) == 2 && which == gpu) count = n;
	}
	if (file) fclose(file);
	return count;
}

int nvmlDeviceGetMigMode(device *d, unsigned *current, unsigned *pending) {
	ASK(d->index);
	*current = *pending = instances(d->index) >= 0;
	return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *count) { ASK(d->index); *count = 7; return SUCCESS; }

int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned n, device **instance) {
	static device parts[MAX_GPUS][7];
	ASK(d->index);
	// Every second place is free.
	if (n >= 7 || n % 2 != 0 || (int)(n / 2) >= instances(d->index)) return 6; // not found
	parts[d->index][n].index = d->index;
	parts[d->index][n].instance = (int)n + 1;
	*instance = &parts[d->index][n];
	return SUCCESS;
}

int nvmlDeviceGetRemappedRows(device *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
	unsigned v[6];
	ASK(d->index);
	vitals(d->index, v);
	*corrected = 0, *uncorrected = v[1], *pending = v[2], *failed = v[3];
	return SUCCESS;
}

typedef struct { unsigned field, scope; long long timestamp, latency; unsigned type; int answer; unsigned value, high; } field_value;

int nvmlDeviceGetFieldValues(device *d, int count, field_value *values) {
	unsigned v[6];
	ASK(d->index);
	vitals(d->index, v);
	for (int i = 0; i < count; i++) {
		values[i].answer = SUCCESS, values[i].type = 1, values[i].high = 0; // 1 is "unsigned int"
		switch (values[i].field) {
		case 230: values[i].value = v[5]; break; // the recovery action
		case 59: values[i].value = 3; break; // NVLinks trained again
		case 82: values[i].value = 41; break; // the memory's temperature
		case 138: case 139: // NVLink data sent and received, KiB
			if (values[i].scope != 0xffffffffu) { values[i].answer = INVALID_ARGUMENT; break; }
			values[i].type = 3, values[i].value = 0, values[i].high = values[i].field == 138 ? 1 : 2; // 3 is "unsigned long long"
			break;
		default: values[i].answer = NOT_SUPPORTED;
		}
	}
	return SUCCESS;
}

typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned health; } fabric_info;

// A line "fabric STATE STATUS CLIQUE" in the state; without it there is none.
int nvmlDeviceGetGpuFabricInfoV(device *d, fabric_info *info) {
	char text[64];
	unsigned state = 0, status = 0, clique = 0;
	ASK(d->index);
	if (info->version != (sizeof *info | 2u << 24)) return 25; // version mismatch
	if (find("fabric", text, sizeof text)) sscanf(text, "%u %u %u", &state, &status, &clique);
	memset(info->cluster, state > 0 ? 0xab : 0, sizeof info->cluster);
	info->status = status, info->clique = clique, info->state = (unsigned char)state;
	return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(device *d, unsigned link, int *type) {
	const char *shape;
	(void)link;
	ASK(d->index);
	links(&shape);
	*type = strcmp(shape, "pairs") == 0 ? 0 : strcmp(shape, "hidden") == 0 ? 255 : 2;
	return SUCCESS;
}
#endif

#endif // EMPTY
