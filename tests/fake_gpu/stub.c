// A GPU that answers questions and does nothing, for torch's CUDA build on a machine without one.
//
// Preloaded, it stands before CUDA's runtime and in the place of the driver (libcuda.so.1). What it
// leaves out of either, __main__.py fills with functions that return 0: nothing went wrong.
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

static int number(const char *name, int other) {
    const char *value = getenv(name);
    return value ? atoi(value) : other;
}

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device ? cudaErrorInvalidDevice : cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaFree(void *memory) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
    *left = *total = (size_t)80 << 30;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *card, int device) {
    memset(card, 0, sizeof *card);
    const char *name = getenv("PRETENDED_NAME");
    strncpy(card->name, name ? name : "NVIDIA H100 80GB HBM3", sizeof card->name - 1);
    card->major = number("PRETENDED_MAJOR", 9);
    card->minor = number("PRETENDED_MINOR", 0);
    card->multiProcessorCount = number("PRETENDED_PROCESSORS", 132);
    card->totalGlobalMem = (size_t)number("PRETENDED_GB", 80) << 30;
    card->sharedMemPerBlock = 48 << 10;
    card->sharedMemPerBlockOptin = number("PRETENDED_SHARED", 227) << 10;
    card->sharedMemPerMultiprocessor = (number("PRETENDED_SHARED", 227) + 1) << 10;
    card->regsPerBlock = card->regsPerMultiprocessor = 65536;
    card->warpSize = 32;
    card->maxThreadsPerBlock = 1024;
    card->maxThreadsPerMultiProcessor = 2048;
    card->l2CacheSize = 50 << 20;
    for (int i = 0; i < 3; i++) card->maxThreadsDim[i] = 1024, card->maxGridSize[i] = 65535;
    card->maxGridSize[0] = 2147483647;
    return cudaSuccess;
}

// Whatever the driver is asked by name, it has done.
static int done(void) { return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned int version,
        unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
    *function = (void *)done;
    if (status) *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active) {
    *flags = 0;
    *active = 1;
    return 0;
}
int cuCtxGetCurrent(void **context) { *context = (void *)done; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
// Memory is the host's; nothing ever computes in it.
cudaError_t cudaMalloc(void **memory, size_t size) {
    *memory = aligned_alloc(512, (size + 511) / 512 * 512);
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}
