// Clusters: their barrier, and mailboxes (mbarrier) with messages (st.async) that arrive late.
#pragma once
#include "accesses.h"

namespace minrnn_host {
unsigned cluster_rank() { return current->block->rank; }
void cluster_sync() {
    Cluster& cluster = *current->block->cluster;
    ++steps;
    if (++cluster.barrier.arrived < int(cluster.fibers.size())) return wait_in(cluster.barrier, "the barrier of its cluster", CALLER);
    cluster.barrier.arrived = 0;
    std::vector<Warp*> warps;
    for (const auto& block : cluster.blocks) for (Warp& warp : block->warps) warps.push_back(&warp);
    meet(warps);
    release(cluster.barrier);
    let_others_run();
}
static Deed deed(const void* caller) { return {current->number, current->tick, place_in_code(caller)}; }
// `does` what only a mailbox that is open takes.
static void need_open(const Block& block, const void* mailbox, const Mail& mail, const char* does, uint64_t at) {
    const Deed& opened = mail.opened;
    if (!knows(*current, opened.number, opened.tick, false)) race(does, "opens", *block.region, mailbox, opened.number, at, opened.at, false);
}
static Mail& own_mail(void* mailbox, const char* does, const void* caller) {
    Block& block = *current->block;
    Mail& mail = block.mail[mailbox];
    if (!mail.is_open()) {
        found("mailbox", place_in_code(caller), 0, current, "%s a mailbox of block %u that nobody has opened", does, block.number);
        abandon();
    }
    need_open(block, mailbox, mail, does, place_in_code(caller));
    return mail;
}
static void check_full(Mail& mail) {
    if (mail.arrivals_left || mail.bytes) return;
    mail.arrivals_left = 1;
    ++mail.turn;
    mail.told = mail.telling;
    mail.telling = nullptr;
    mail.heard.clear();
    release(mail);
}
void mbarrier_init(void* mailbox) {
    access(mailbox, 8, 8, WRITE, CALLER);
    Block& block = *current->block;
    Mail& mail = block.mail[mailbox];
    const Deed& sent = mail.sent_before;
    if (sent.number) race("opens", "sends to", *block.region, mailbox, sent.number, place_in_code(CALLER), sent.at, false);
    mail.opened = deed(CALLER);
}
void mbarrier_arrive_expect_tx(void* mailbox, unsigned bytes) {
    ++steps;
    Mail& mail = own_mail(mailbox, "tells what to expect to", CALLER);
    if (!mail.arrivals_left) {
        found("mailbox", place_in_code(CALLER), 0, current, "tells a mailbox what to expect twice in one turn");
        abandon();
    }
    --mail.arrivals_left;
    mail.bytes += bytes;
    tell(mail, told_by(*current));
    check_full(mail);
}
void mbarrier_wait(void* mailbox, int turn) {
    ++steps;
    let_others_run();
    Mail& mail = own_mail(mailbox, "waits for", CALLER);
    if ((mail.turn & 1) == (turn & 1)) wait_in(mail, MAILBOX, CALLER);
    current->heard = later(current->heard, mail.told);
}
void send_bytes(void* to, void* mailbox, unsigned rank, const void* value, int bytes) {
    ++steps;
    Block& mine = *current->block;
    if (rank >= mine.cluster->blocks.size()) {
        found("out of bounds", place_in_code(CALLER), 0, current, "sends to block %u of a cluster of %zu", rank, mine.cluster->blocks.size());
        abandon();
    }
    Block& theirs = *mine.cluster->blocks[rank];
    const long long offset = static_cast<unsigned char*>(to) - mine.shared;
    if (offset < 0 || offset + bytes > (long long)(shared_size) || offset % bytes) {
        found("out of bounds", place_in_code(CALLER), 0, current, "sends %d bytes to %s", bytes, whereabouts(to).c_str());
        abandon();
    }
    Message message = {&theirs, theirs.shared + offset, theirs.shared + (static_cast<unsigned char*>(mailbox) - mine.shared), {}, bytes, current, place_in_code(CALLER), {}};
    std::memcpy(message.value, value, bytes);
    Mail& mail = theirs.mail[message.mailbox];
    if (mail.is_open()) need_open(theirs, message.mailbox, mail, "sends to", message.at);
    else if (!mail.sent_before.number) mail.sent_before = deed(CALLER);
    access_places(*theirs.region, message.to, bytes, BEGUN, message.at);
    message.told = told_by(*current);
    messages.push_back(message);
}
static void deliver(bool may_be_later) {
    std::swap(messages[below(unsigned(messages.size()))], messages.back());
    const Message message = messages.back();
    messages.pop_back();
    Mail& mail = message.block->mail[message.mailbox];
    if (!message.block->fibers_left || !mail.is_open()) {
        // Somebody may open it yet, which is a race then.
        if (message.block->fibers_left && may_be_later) return messages.push_back(message);
        found("mailbox", message.at, 0, message.by, "sends a message that arrives in block %u, which %s", message.block->number,
              message.block->fibers_left ? "has not opened the mailbox" : "has ended");
        is_over = true;
        return;
    }
    std::memcpy(message.to, message.value, message.bytes);
    ++changes;
    Region& region = *message.block->region;
    arrived(region, message.to, message.bytes, region.places[(message.to - region.begin) / PLACE_BYTES].write_tick);
    mail.bytes -= message.bytes;
    tell(mail, message.told);
    check_full(mail);
}
}  // namespace minrnn_host
