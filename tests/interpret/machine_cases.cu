// Cases of the machine's primitives. `fault` leaves out or adds what the comment beside it says, 0 nothing.
struct Shared {
    alignas(1024) unsigned char slot[2][2048];
    alignas(1024) unsigned char left[64 * 128];
    Mbarrier full[2], empty[2];
    unsigned short stage[16][64];
};
// A recurrence over the grid: h[t + 1] = bf16(left h[t] / 8), exchanged by pieces, counters and bulk copies.
__device__ void recurrence(int fault, bool is_shared, int steps, unsigned char* h, unsigned* counter, const unsigned* left, float* y) {
    extern __shared__ unsigned char shared_bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
    const int thread = threadIdx.x, lane = thread % 32, row = thread / 32 * 16 + lane / 4, pair = lane % 4;
    if (thread == 0) {
        for (int n = 0; n < 2; ++n) {
            mbarrier_init(&shared.full[n]);
            mbarrier_init(&shared.empty[n], 4);
        }
    }
    for (int piece = thread; is_shared && piece < 64 * 8; piece += 256) {
        *reinterpret_cast<Piece*>(shared.left + swizzled(piece / 8, piece % 8)) = *reinterpret_cast<const Piece*>(left + piece * 4);
    }
    if (fault != 2) fence_async_proxy();                                                // 2: left is shown to no proxy
    __syncthreads();
    if (thread >= 128) {
        for (int t = 0; t < steps && thread == 128; ++t) {
            const int slot = t % 2;
            mbarrier_wait(&shared.empty[slot], t / 2 - 1);
            if (t > 0 && fault != 4) while (load_acquire(counter) < unsigned(2 * t)) {} // 4: no wait for the others
            if (fault != 5) fence_async_proxy();                                        // 5: no fence behind the acquire
            if (fault == 6) mbarrier_arrive(&shared.full[slot]);                        // 6: no bytes expected
            else mbarrier_arrive_expect_tx(&shared.full[slot], 2048);
            bulk_copy(shared.slot[slot], h + t * 2048, 2048, &shared.full[slot]);
        }
        if (thread == 128) for (int t = steps - (steps > 1 ? 2 : 1); t < steps; ++t) mbarrier_wait(&shared.full[t % 2], t / 2);
        return;
    }
    unsigned words[4][4];
    for (int s = 0; s < 4; ++s) for (int w = 0; w < 4; ++w) words[s][w] = left[(row + w % 2 * 8) * 32 + s * 8 + w / 2 * 4 + pair];
    for (int t = 0; t < steps; ++t) {
        const int slot = t % 2;
        float sum[8] = {};
        if (fault != 7) mbarrier_wait(&shared.full[slot], t / 2);                       // 7: no wait for the copy
        fence_multiplications();
        for (int s = 0; s < 4; ++s) {
            const SharedMatrix right = SharedMatrix(shared.slot[slot]).at(s * SLICE_BYTES);
            if (is_shared) multiply_add(sum, SharedMatrix(shared.left).at(s * SLICE_BYTES), right);
            else multiply_add(sum, words[s], right);
        }
        if (fault != 8) close_multiplications();                                        // 8: a batch that is not closed
        if (fault == 10) wait_multiplications<1>(sum);                                  // 10: a wait that leaves the batch in flight
        else wait_multiplications<0>(sum);
        if (lane == 0) mbarrier_arrive(&shared.empty[slot]);
        for (int n = 0; n < 8; ++n) {
            const int unit = row + n / 2 % 2 * 8, column = n / 4 * 8 + pair * 2 + n % 2;
            if (blockIdx.x == 0) y[(t * 64 + unit) * 16 + column] = sum[n];
            shared.stage[column][unit] = minrnn_host::bfloat16_from_float(sum[n] * 0.125f);
        }
        if (fault != 12) sync_some(1, 128);                                             // 12: no barrier before others' values are read
        if (thread % 2 == blockIdx.x % 2) {
            store_piece(h + (t + 1) * 2048 + swizzled(thread / 8, thread % 8), *reinterpret_cast<Piece*>(&shared.stage[thread / 8][thread % 8 * 8]));
        }
        if (fault == 13) __syncwarp();                                                  // 13: stores that no barrier orders before the addition
        else sync_some(1, fault == 14 ? 96 : 128);                                      // 14: a barrier of fewer threads than come
        if (thread == 0 && (fault != 15 || blockIdx.x)) add_release(counter);           // 15: no addition
    }
}
// One product of every element and both places of the left operand: left [64, 32 bytes], right [columns, 32 bytes], sum [64, columns].
__device__ void product(int element, bool is_shared, int columns, int slice, const unsigned char* left, const unsigned char* right, float* y) {
    extern __shared__ unsigned char shared_bytes[];
    unsigned char* const bytes = reinterpret_cast<unsigned char*>(shared_bytes);
    const int thread = threadIdx.x, row = thread / 32 * 16 + thread % 32 / 4, pair = thread % 4;
    for (int n = thread; n < 64 * 32; n += 128) reinterpret_cast<unsigned*>(bytes)[n] = reinterpret_cast<const unsigned*>(left)[n];
    for (int n = thread; n < columns * 32; n += 128) reinterpret_cast<unsigned*>(bytes)[64 * 32 + n] = reinterpret_cast<const unsigned*>(right)[n];
    fence_async_proxy();
    __syncthreads();
    unsigned words[4];
    for (int w = 0; w < 4; ++w) {
        const int r = row + w % 2 * 8;
        words[w] = *reinterpret_cast<const unsigned*>(left + swizzled(r, slice * 2 + w / 2) + pair * 4);
    }
    float sum[128];
    for (int n = 0; n < columns / 2; ++n) sum[n] = n;
    const char* const names[] = { "bf16", "f16", "tf32" };
    fence_multiplications();
    minrnn_host::multiply_warpgroup(sum, columns, is_shared ? nullptr : words, is_shared ? bytes + slice * SLICE_BYTES : nullptr,
                                    bytes + 64 * 128 + slice * SLICE_BYTES, names[element]);
    minrnn_host::close_multiplications();
    minrnn_host::wait_multiplications(0);
    for (int n = 0; n < columns / 2; ++n) y[(row + n / 2 % 2 * 8) * columns + n / 4 * 8 + pair * 2 + n % 2] = sum[n] - n;
}
// Ways to use one instruction wrongly.
__device__ void misuse(int fault, unsigned char* h, unsigned* counter, float* y) {
    extern __shared__ unsigned char shared_bytes[];
    unsigned char* const bytes = reinterpret_cast<unsigned char*>(shared_bytes);
    Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
    const int thread = threadIdx.x;
    if (thread == 0) for (int n = 0; n < 2; ++n) mbarrier_init(&shared.full[n], fault == 1 ? 0 : n + 1);
    __syncthreads();
    float sum[8] = {};
    const SharedMatrix matrix = SharedMatrix(shared.slot[0]);
    if (fault != 29) fence_multiplications();                                           // 29: registers written, and no fence
    switch (fault) {
        case 2: if (thread == 0) bulk_copy(shared.slot[0] + 8, h, 16, &shared.full[0]); break;
        case 3: if (thread == 0) bulk_copy(shared.slot[0], h, 24, &shared.full[0]); break;
        case 4: if (thread == 0) bulk_copy(shared.slot[0], h + 2048 * 16, 16, &shared.full[0]); break;
        case 5: if (thread == 0) bulk_copy(bytes + (1 << 14) - 16, h, 32, &shared.full[0]); break;
        case 6: if (thread == 0) bulk_copy(shared.slot[0], h, 16, &shared.empty[0]); break;
        case 7: if (thread == 0) bulk_copy(shared.slot[0], h, 16, &shared.full[0]); return;                 // and exits
        case 8: sync_some(16, 128); break;
        case 9: sync_some(1, 48); break;
        case 10: sync_some(1, thread < 64 ? 64 : 96); break;
        case 11: if (thread < 64) sync_some(1, 128); break;
        case 12: if (thread < 16 || thread >= 112) sync_some(1, 32); break;
        case 13: multiply_add(sum, matrix.at(8), matrix.at(8)); break;
        case 14: multiply_add(sum, SharedMatrix(bytes + 1024 * 9), matrix); break;
        case 15: multiply_add(sum, matrix, matrix); close_multiplications(); break;                         // and exits
        case 16: multiply_add(sum, matrix, matrix); close_multiplications(); if (thread % 32 < 16) wait_multiplications<0>(sum); break;
        case 17: multiply_add(sum, matrix, matrix); close_multiplications(); sum[1] = 1; wait_multiplications<0>(sum); break;
        case 18: if (thread < 96) { multiply_add(sum, matrix, matrix); close_multiplications(); wait_multiplications<0>(sum); } break;
        case 19: if (thread == 0) { mbarrier_arrive(&shared.full[1]); mbarrier_arrive(&shared.full[1]); mbarrier_wait(&shared.full[1], 0); } break;
        case 20: if (thread < 3) mbarrier_arrive_expect_tx(&shared.full[1], 16); break;
        case 21: if (thread == 0) while (load_acquire(counter) < 1u) {} break;
        case 22: store_piece(h + 2048 * 16 - 8, Piece{}); break;
        case 23: sync_some(2, 128); shared.slot[0][thread * 2] = 1; sync_some(2, 128); y[thread] = shared.slot[0][(thread + 64) % 128 * 2]; break;
        case 24: shared.slot[0][thread * 2] = 1; sync_some(1 + thread / 64, 64); y[thread] = shared.slot[0][(thread + 64) % 128 * 2]; break;
        case 25: if (thread == 32) { y[0] = 1; add_release(counter); } if (thread == 64) { while (!load_acquire(counter)) {} y[1] = y[0]; } break;
        case 26: if (thread == 32) { y[0] = 1; add_release(counter + 1); add_release(counter); } if (thread == 64) y[1] = load_acquire(counter) + y[0]; break;
        case 27: case 28:
            for (int n = 0; n < 2; ++n) {
                if (thread == 0) mbarrier_arrive_expect_tx(&shared.full[0], 2048);
                if (thread == 0) bulk_copy(shared.slot[0], h, 2048, &shared.full[0]);
                mbarrier_wait(&shared.full[0], n);
                fence_multiplications();
                { const unsigned none[4] = {}; multiply_add(sum, none, matrix); }
                close_multiplications();
                if (fault == 28) wait_multiplications<0>(sum);
                __syncthreads();
            }
            if (fault == 27) wait_multiplications<0>(sum);
            break;
        case 29: multiply_add(sum, matrix, matrix); close_multiplications(); wait_multiplications<0>(sum); break;
        case 30: case 31:
            multiply_add(sum, matrix, matrix);
            close_multiplications();
            wait_multiplications<0>(sum);
            if (fault == 30) fence_multiplications();                                   // 31: sums written by the wait, and no fence
            multiply_add(sum, matrix, matrix);
            close_multiplications();
            wait_multiplications<0>(sum);
            break;
        case 32: lower_registers<40>(); break;
        case 33: lower_registers<36>(); break;
        case 34: if (thread < 96) lower_registers<40>(); break;
        case 35: if (thread % 32 < 16) lower_registers<40>(); break;
        case 36: case 37: case 38: case 39: case 40:
            if (thread == 0) {
                fetch_piece(shared.slot[0], h);
                if (fault == 37) mbarrier_arrive(&shared.full[0]);                      // 37: an arrival that waits for no copy
                else if (fault != 38) mbarrier_arrive_when_copied(&shared.full[0]);     // 38: none
                if (fault == 40) mbarrier_arrive_when_copied(&shared.empty[0]);         // 40: at one that is not initialized
            }
            if (thread == 32) {
                if (fault != 39) mbarrier_wait(&shared.full[0], 0);                     // 39: no wait
                y[0] = shared.slot[0][15];
            }
            break;
        case 41:                                                                        // two phases: a late thread takes the second for none
            for (int n = 0; n < 256 && thread == 0; ++n) {
                mbarrier_wait(&shared.full[0], 1);                                      // passes at once
                if (n % 64 == 0) mbarrier_arrive(&shared.full[1]);
            }
            if (thread == 32) mbarrier_wait(&shared.full[1], 0);
            break;
    }
    __syncthreads();
}
__global__ void machine_case(long which, int fault, int flag, int size, int more, unsigned char* h, unsigned* counter, const unsigned char* left, float* y) {
    if (which == 0) recurrence(fault, flag, size, h, counter, reinterpret_cast<const unsigned*>(left), y);
    if (which == 1) product(fault, flag, size, more, left, h, y);
    if (which == 2) misuse(fault, h, counter, y);
}
